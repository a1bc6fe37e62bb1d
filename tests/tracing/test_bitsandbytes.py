"""Which weights bitsandbytes converts, beside the networks of the installed transformers."""

from importlib import import_module
from importlib.util import find_spec
from types import SimpleNamespace

import pytest
import torch
from msgspec.structs import replace

transformers = pytest.importorskip("transformers")
pytest.importorskip("accelerate")
if find_spec("torchvision") is not None:
    from vramcast.tracing.extensions.stand_ins import prepare_torchvision

    prepare_torchvision()

from transformers.quantizers import base  # noqa: E402

from tests.tracing._configs import shortened  # noqa: E402
from vramcast.blocks.parameters.model import named_parameters  # noqa: E402
from vramcast.catalogue.index import MODELS  # noqa: E402
from vramcast.catalogue.models import entry_model, read_entry  # noqa: E402
from vramcast.engines.transformers.versions import left_whole  # noqa: E402
from vramcast.states.storage import bitsandbytes_converts  # noqa: E402

OTHER_SIZES = {
    "bert": "its pooler", "distilbert": "its head", "roberta": "its head", "xlm-roberta": "its pooler",
    "vit": "its classifier",
    "clip": "projections, of which the last is kept", "clip_text_model": "its projection",
    "siglip": "its last layer is kept", "olmo": "its last layer is kept, no norm follows",
    "gemma3": "its projector is a parameter", "gemma4": "its projector of images",
    "gemma4_unified": "patches are a linear, and its projector of sounds is kept as the last layer",
    "kimi_linear": "the config holds fewer layers of one kind", "llama4": "its projector",
    "lfm2_vl": "patches are a linear, and its encoder's head is packed", "muse_glimmer": "patches are a linear",
    "minimax": "the config says the kinds of layers under another name",
}
"""Model types whose sums differ by what our list of weights has no place for."""

WHOLE = ("gpt_neo", "mllama", "nemotron_h", "olmo")
"""Whose configs say more of their layers than how many there are, or keep the last one, which is much of a few."""

KINDS = {str(read_entry(name).config.get("model_type")): name for name in reversed(MODELS.names())}


class Converted(torch.nn.Module):
    """Stands in for Linear4bit."""

    def __init__(self, inputs, outputs, *_arguments, **_options):
        super().__init__()
        self.elements = inputs * outputs


def entry_of(kind):
    """The catalogue's, of a few layers."""
    entry = read_entry(KINDS[kind])
    return entry if kind in WHOLE else replace(entry, config=shortened(entry.config))


def network(config):
    """A model as transformers builds it, without storage."""
    kind, architecture = config.pop("model_type"), config.pop("architectures", [""])[0]
    for key in ("auto_map", "quantization_config", "transformers_version"):
        config.pop(key, None)
    found = transformers.AutoConfig.for_model(kind, **config)
    built = getattr(transformers, architecture, None)
    with torch.device("meta"):
        return built(found) if built else transformers.AutoModelForCausalLM.from_config(found)


@pytest.mark.parametrize("kind", sorted(KINDS))
def test_what_is_converted_is_what_replace_with_bnb_linear_replaces(kind, monkeypatch):
    try:
        built = network(dict(entry_of(kind).config))
    except (ValueError, ImportError, AttributeError, TypeError):
        pytest.skip(f"this transformers has no code for {kind}")
    integration = import_module("transformers.integrations.bitsandbytes")
    nn = SimpleNamespace(Linear4bit=Converted)
    monkeypatch.setattr(integration, "bnb", SimpleNamespace(nn=nn), raising=False)
    kept = base.HfQuantizer.get_modules_to_not_convert(built, None, built._keep_in_fp32_modules)
    config = transformers.BitsAndBytesConfig(load_in_4bit=True)
    integration.replace_with_bnb_linear(built, kept, config)
    theirs = sum(module.elements for module in built.modules() if isinstance(module, Converted))
    release = tuple(int(part) for part in transformers.__version__.split(".")[:2])
    model = entry_model(KINDS[kind], entry_of(kind))
    ours = sum(
        owned.parameter.elements * owned.repeats
        for owned in named_parameters(model)
        if bitsandbytes_converts(owned.parameter, left_whole(model.family, release))
    )
    if kind not in OTHER_SIZES:
        assert ours == theirs
    elif kind != "minimax":
        assert ours == pytest.approx(theirs, rel=0.025)
