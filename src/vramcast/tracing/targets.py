"""TARGET as users write it: where a module comes from, and how to build it without its weights; errors of users' code.

Trained weights are never fetched: builders of torchvision run as they are, and what they would load is left out.
Builders ask for them by default (backbones of detection and segmentation), and choose by them which layers are
frozen, so the choice stays and only the download is left out.
"""

from __future__ import annotations

import importlib
import re
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from types import FrameType, ModuleType, TracebackType
from typing import Any, Final, NamedTuple
from unittest.mock import patch

import torch

from vramcast.domain.snapshot import Frame
from vramcast.domain.trace_job import TraceJob
from vramcast.errors import InvalidSpec, Note, SourceError, UnknownName, Unsupported, VramcastError
from vramcast.sources.resolve import config_of, read_config
from vramcast.tracing.environment.hub import loading_nothing_unread
from vramcast.tracing.environment.saving import Unread
from vramcast.tracing.extensions import ASKING, EXTENSIONS
from vramcast.tracing.extensions.stand_ins import NeedsCard, detecting, prepare_torchvision
from vramcast.tracing.packages import OWN
from vramcast.tracing.result import TORCH, line_of

META_TENSOR: Final = re.compile(r"\bMeta(\w+)Type\b")
"""How C++ names the tensors of a simulated card."""
LONGEST: Final = 300  # of a message that is passed on [characters]


def explained(error: Exception, *, what: str, model: torch.nn.Module | None = None) -> VramcastError:
    """One sentence for an error that a user's code raised, in a module of the model, while doing "the forward"."""
    if isinstance(error, VramcastError):
        return error
    text = words_of(error)
    where = _module_of(error, model) if model is not None else ""
    return InvalidSpec("{} raised {}: {}{}{}", what, type(error).__name__, text, where, place_of_error(error))


def words_of(error: BaseException) -> str:
    """Its message on one line, in which tensors are those of the card, without a full stop."""
    text = META_TENSOR.sub(r"torch.cuda.\1Tensor", " ".join(str(error).split()))
    return text[:LONGEST].rstrip(". ") or "no message"


def place_of_error(error: BaseException) -> str:
    """" (at train.py:12 main)" of the innermost line that is neither torch's nor ours."""
    frames = [
        Frame(frame.f_code.co_qualname, frame.f_code.co_filename, line) for frame, line in _frames(error.__traceback__)
    ]
    others = (frame for frame in reversed(frames) if not frame.filename.startswith(OWN))
    line = line_of(frame for frame in others if TORCH.search(frame.filename) is None)
    return f" (at {line})" if line else ""


def _module_of(error: BaseException, model: torch.nn.Module) -> str:
    """", in layer1.conv, given 2 x 4 x 8": the innermost module of the model whose forward was running."""
    names = {id(module): name for name, module in model.named_modules()}
    found, given = "", ""
    for frame, _ in _frames(error.__traceback__):
        running = frame.f_locals.get("self")
        if isinstance(running, torch.nn.Module) and names.get(id(running)):
            found = names[id(running)]
            arguments = frame.f_code.co_varnames[: frame.f_code.co_argcount]
            values = (frame.f_locals.get(name) for name in arguments)
            shape = next((value.shape for value in values if isinstance(value, torch.Tensor)), None)
            given = given if shape is None else f", given {' x '.join(map(str, shape))}"
    return f", in {found}{given}" if found else ""


def _frames(traceback: TracebackType | None) -> Iterator[tuple[FrameType, int]]:
    while traceback is not None:
        yield traceback.tb_frame, traceback.tb_lineno
        traceback = traceback.tb_next


class Target(NamedTuple):
    """A module that can be built, any number of times."""

    name: str
    family: str  # "timm", "torchvision", "transformers", "diffusers", "python": what knows its inputs
    build: Callable[[], torch.nn.Module]


def find_before(job: TraceJob) -> Target | None:
    """As `find_target`; None where something is imported that asks for the card, which has to be simulated first."""
    if job.target.partition(":")[0] in SCHEMES:
        return find_target(job)
    try:
        with detecting(ASKING, EXTENSIONS):
            return find_target(job)
    except NeedsCard:
        return None


def find_target(job: TraceJob) -> Target:
    """Where the module of a job comes from.

    Raises: VramcastError of one sentence where it cannot be found or its import fails
    """
    scheme, mark, rest = job.target.partition(":")
    if not mark or not rest:
        raise InvalidSpec(
            "target {!r} must be a script.py, module:factory, timm:NAME, transformers:MODEL or diffusers:CONFIG",
            job.target[:80]
        )
    return SCHEMES.get(scheme, _python)(rest if scheme in SCHEMES else job.target, job.arguments)


def _timm(name: str, arguments: Mapping[str, Any]) -> Target:
    timm = imported("timm")
    if not timm.is_model(name.split(".")[0]):
        raise UnknownName.of("timm model", name, timm.list_models())
    return Target(f"timm:{name}", "timm", lambda: timm.create_model(name, pretrained=False, **arguments))


def _transformers(name: str, arguments: Mapping[str, Any]) -> Target:
    transformers = imported("transformers")
    transformers.logging.set_verbosity_error()  # remarks on configs without weights are no part of the answer
    raw = {**config_of(name), **arguments}
    kind = raw.pop("model_type", None)
    try:
        config = transformers.AutoConfig.for_model(kind, **raw)
    except ValueError as error:
        raise Unsupported(
            "{}: transformers {} does not know model_type={!r}; {}",
            name, transformers.__version__, kind, str(error).splitlines()[0][:160]
        ) from None
    except Exception as error:  # its own checks of values
        raise InvalidSpec(
            "{}: transformers {} refuses its config: {}: {}",
            name, transformers.__version__, type(error).__name__, " ".join(str(error).split())[:300]
        ) from None
    if config.is_encoder_decoder and getattr(config, "decoder_start_token_id", None) is None:
        config.decoder_start_token_id = config.pad_token_id = 0  # which token decoding begins with takes no memory
    classes = raw.get("architectures") or ()
    found = next((getattr(transformers, each) for each in classes if hasattr(transformers, each)), None)

    def build() -> torch.nn.Module:
        model: torch.nn.Module
        if found is not None:
            model = found(config)
        else:
            tried = (getattr(transformers, each) for each in HEADS[bool(config.is_encoder_decoder)])
            mapping = next((each for each in tried if type(config) in each._model_mapping), transformers.AutoModel)
            model = mapping.from_config(config)
        return model

    return Target(f"transformers:{name}", "transformers", build)


def _diffusers(name: str, arguments: Mapping[str, Any]) -> Target:
    diffusers = imported("diffusers")
    if hasattr(diffusers, name):
        values = dict(arguments)
        config = read_config(values.pop("config")) if "config" in values else {}
        class_ = getattr(diffusers, name)
    else:
        config, values = read_config(name), dict(arguments)
        class_ = getattr(diffusers, str(config.get("_class_name")), None)
    if class_ is None or not hasattr(class_, "from_config"):
        raise UnknownName.of("network of diffusers", name, [each for each in dir(diffusers) if each.endswith("Model")])
    return Target(f"diffusers:{name}", "diffusers", lambda: class_.from_config({**config, **values}))


def _python(text: str, arguments: Mapping[str, Any]) -> Target:
    found = found_object(text)
    family = "torchvision" if text.startswith("torchvision.") else "python"
    if isinstance(found, torch.nn.Module):
        if arguments:
            raise InvalidSpec("{} is a module already, so --arg has no meaning; leave it out", text)
        return Target(text, family, lambda: found)
    if not callable(found):
        raise InvalidSpec("{} is {}; give what builds a torch.nn.Module, or one", text, _a(found))

    def build() -> torch.nn.Module:
        model = found(**arguments)
        if not isinstance(model, torch.nn.Module):
            raise InvalidSpec("{} returned {}, not a torch.nn.Module; name what builds the module", text, _a(model))
        return model

    return Target(text, family, build)


def _a(value: object) -> str:
    return f"an object of {type(value).__name__}"


def found_object(text: str) -> Any:
    """What module:name is; the folder one stands in counts, as with python -m.

    Raises: SourceError or UnknownName with one sentence
    """
    path, _, name = text.partition(":")
    module = imported(path)
    found: Any = module
    for part in name.split("."):
        if not hasattr(found, part):
            raise UnknownName.of(
                Note("name in {}", path), part, [each for each in dir(found) if not each.startswith("_")]
            )
        found = getattr(found, part)
    return found


def imported(name: str) -> ModuleType:
    """A module of the user's or of a library.

    Raises: SourceError that says what is missing, or at which line an import fails
    """
    here = str(Path.cwd())
    sys.path.insert(0, here)
    try:
        if name.partition(".")[0] in NEED_TORCHVISION:
            prepare_torchvision()
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        what = "" if error.name == name else f", which imports {error.name}"
        raise SourceError("{}{}: not installed; pip install it, or check the name and the folder", name, what) from None
    except VramcastError:
        raise
    except Exception as error:

        raise SourceError(
            "{} cannot be imported: {}: {}{}", name, type(error).__name__, _first_line(error), place_of_error(error)
        ) from None
    finally:
        sys.path.remove(here)


def _first_line(error: BaseException) -> str:
    return (str(error).strip().splitlines() or [""])[0][:300]


SCHEMES: Final[Mapping[str, Callable[[str, Mapping[str, Any]], Target]]] = {
    "timm": _timm, "transformers": _transformers, "diffusers": _diffusers,
}
HEADS: Final[Mapping[bool, tuple[str, ...]]] = {
    False: ("AutoModelForCausalLM",), True: ("AutoModelForSeq2SeqLM", "AutoModelForSpeechSeq2Seq"),
}
"""Whether a network is an encoder with a decoder -> what is built of a config that names no class, before AutoModel."""
NEED_TORCHVISION: Final = frozenset({"torchvision", "timm", "transformers", "diffusers"})


@contextmanager
def unfetched() -> Iterator[None]:
    """Within, torchvision's weights are `Unread`, without a word: who names a module asks for its shape."""
    api = sys.modules.get("torchvision.models._api")
    if api is None:
        yield
        return
    with (
        patch.object(api.WeightsEnum, "get_state_dict", lambda *_args, **_kwargs: Unread()),
        patch.object(torch.nn.Module, "load_state_dict", loading_nothing_unread()),
    ):
        yield
