"""Compiled modules of kernel libraries, answered without a card.

Libraries such as Apex call functions of compiled modules directly, not operators that a dispatcher sees. While a
simulation runs, importing such a module gives a stand-in: every function that is known takes what the compiled one
takes and returns what it returns, the library's own Python runs unmodified. Stand-ins come only where the library
itself is installed. What was imported meanwhile is forgotten afterwards: it has seen a card that is not there. xformers
stays imported, since it defines operators once; what it decides when it is imported stays, too.
[library] xformers xformers/_cpp_lib.py `_register_extensions`, v0.0.35: its own compiled part holds 2:4 sparsity only
A function is read only where every statement that could allocate is understood: a source that calls an operator, keeps
a workspace or asks an allocator for one is left unread as a whole function.
[names] torch.utils.cpp_extension: `load_inline` is given what Python may call, `load` files that bind it

torchvision's own operators, where its compiled part is missing or does not fit this torch.

torchvision registers what its operators return when it is imported, which fails where they are not defined (its wheel
beside a CPU build of torch). They are defined then, by their schemas alone: on tensors without data none is ever run.
Where the compiled part loads nothing changes.
"""

from __future__ import annotations

import importlib
import re
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec, PathFinder, SourceFileLoader
from importlib.util import find_spec
from inspect import signature
from pathlib import Path
from types import FunctionType, ModuleType
from typing import Any, Final, NamedTuple

import torch
from torch.utils._python_dispatch import _disable_current_modes

from vramcast.errors import Note, Unsupported
from vramcast.timing.roofline import UNREAD, Operation
from vramcast.tracing.call import Call, Rule
from vramcast.tracing.costs import num_bytes
from vramcast.tracing.environment.patches import Answer, Patches, answer_in, variables
from vramcast.tracing.memory import Device
from vramcast.tracing.operators import all_tensors
from vramcast.tracing.simulation import Simulation, answering, running

_SCALE: Final = "Tensor rois, float spatial_scale, SymInt pooled_height, SymInt pooled_width"
_SHAPE: Final = "SymInt batch_size, SymInt channels, SymInt height, SymInt width"
_DEFORM: Final = (
    "Tensor input, Tensor weight, Tensor offset, Tensor mask, Tensor bias, SymInt stride_h, SymInt stride_w, "
    "SymInt pad_h, SymInt pad_w, SymInt dilation_h, SymInt dilation_w, SymInt groups, SymInt offset_groups, "
    "bool use_mask"
)
SCHEMAS: Final = (
    "nms(Tensor dets, Tensor scores, float iou_threshold) -> Tensor",
    "qnms(Tensor dets, Tensor scores, float iou_threshold) -> Tensor",
    f"roi_align(Tensor input, {_SCALE}, int sampling_ratio, bool aligned) -> Tensor",
    f"_roi_align_backward(Tensor grad, {_SCALE}, {_SHAPE}, int sampling_ratio, bool aligned) -> Tensor",
    "qroi_align(Tensor input, Tensor rois, float input_scale, int input_zero_point, float rois_scale, "
    "int rois_zero_point, float spatial_scale, SymInt pooled_height, SymInt pooled_width, int sampling_ratio, "
    "bool aligned) -> Tensor",
    f"roi_pool(Tensor input, {_SCALE}) -> (Tensor, Tensor)",
    "_roi_pool_backward(Tensor grad, Tensor rois, Tensor argmax, float spatial_scale, SymInt pooled_height, "
    f"SymInt pooled_width, {_SHAPE}) -> Tensor",
    f"ps_roi_align(Tensor input, {_SCALE}, int sampling_ratio) -> (Tensor, Tensor)",
    "_ps_roi_align_backward(Tensor grad, Tensor rois, Tensor channel_mapping, float spatial_scale, "
    f"SymInt pooled_height, SymInt pooled_width, int sampling_ratio, {_SHAPE}) -> Tensor",
    f"ps_roi_pool(Tensor input, {_SCALE}) -> (Tensor, Tensor)",
    "_ps_roi_pool_backward(Tensor grad, Tensor rois, Tensor channel_mapping, float spatial_scale, "
    f"SymInt pooled_height, SymInt pooled_width, {_SHAPE}) -> Tensor",
    f"deform_conv2d({_DEFORM}) -> Tensor",
    f"_deform_conv2d_backward(Tensor grad, {_DEFORM}) -> (Tensor, Tensor, Tensor, Tensor, Tensor)",
    "box_iou_rotated(Tensor boxes1, Tensor boxes2) -> Tensor",
    "_cuda_version() -> int",
)
LIBRARY: Final = "_C"
NO_CUDA: Final = -1  # what a torchvision without CUDA answers when asked for its version

_kept: Final[list[Any]] = []  # a library that is collected takes its operators along


def prepare_torchvision() -> None:
    """Import torchvision, where it is installed: timm, transformers and diffusers import it on the way."""
    if "torchvision" in sys.modules or find_spec("torchvision") is None:
        return
    replaced = vars(torch.ops).get("load_library")
    torch.ops.load_library = with_stand_ins(torch.ops.load_library)
    try:
        importlib.import_module("torchvision")
    finally:
        if replaced is None:
            del torch.ops.load_library
        else:
            torch.ops.load_library = replaced


def unless_loads(load: Callable[[Any], None], package: str, instead: Callable[[], None]) -> Callable[[Any], None]:
    """A `torch.ops.load_library` that does something else where the compiled part of a package does not load."""

    def load_or_go_on(path: Any) -> None:
        try:
            load(path)
        except OSError:
            file = Path(path)
            if file.parent.name != package or file.name.partition(".")[0] != LIBRARY:
                raise
            instead()

    return load_or_go_on


def with_stand_ins(load: Callable[[Any], None]) -> Callable[[Any], None]:
    """A `torch.ops.load_library` that defines torchvision's operators where their library does not load."""
    return unless_loads(load, "torchvision", _define)


def _define() -> None:
    library = torch.library.Library("torchvision", "FRAGMENT")
    known = torch._C._dispatch_get_all_op_names()
    for schema in SCHEMAS:
        name = schema.partition("(")[0]
        if f"torchvision::{name}" not in known:
            library.define(schema)
    library.impl("_cuda_version", lambda: NO_CUDA, "CompositeExplicitAutograd")
    _kept.append(library)


TAKEN: Final = "the compiled module {} of {} is taken to be built"


class Extension(NamedTuple):
    """A compiled module."""

    library: str  # that is to be installed: its package
    part: str  # a file or folder within, which other packages of that name do not have
    kernels: Mapping[str, Rule]  # function -> what it does on the card
    values: Mapping[str, Any] = {}  # other attributes: enumerations, functions that need no card
    unread: tuple[str, ...] = ()  # names of functions that raise, where all are to be imported at once


DEFINE_ONCE: Final = frozenset({"xformers"})
"""Packages that cannot be imported twice, since they define operators; what they keep of a stand-in finds its way."""
Guard = Mapping[str, Answer] | Callable[[ModuleType], None]
"""What becomes of a module of a library once it has run: answers by name, or what a function changes of it."""
WITHIN: Final = {"transformer_engine.common": {"NVTE_PROJECT_BUILDING": "1"}}
"""Module -> variables of the environment while it runs."""


class _Function(NamedTuple):
    """What a rule sees as the operator."""

    func: Any
    name: str


class StandIn(ModuleType):
    """A compiled module whose functions are rules."""

    def __init__(self, name: str, extension: Extension) -> None:
        super().__init__(name, f"What {name} of {extension.library} does on a simulated card.")
        for function in extension.unread:
            setattr(self, function, unread(f"{name}.{function}"))
        for function, rule in extension.kernels.items():
            setattr(self, function, kernel(f"{name}.{function}", rule))
        for attribute, value in extension.values.items():
            setattr(self, attribute, value)

    def __getattr__(self, attribute: str) -> Any:
        """A function that nobody has read."""
        if attribute.startswith("__"):
            raise AttributeError(attribute)
        return unread(f"{self.__name__}.{attribute}")


def kernel(name: str, rule: Rule) -> Callable[..., Any]:
    """A compiled function, answered by its rule."""

    def run(*args: Any, **kwargs: Any) -> Any:
        simulation = running()
        if simulation is None:
            return _compiled(name)(*args, **kwargs)
        device = _device_of(simulation, (*args, *kwargs.values()))
        if device is None:
            raise RuntimeError(f"{name} takes tensors of a CUDA device, and was given tensors of the host")
        call = Call(simulation, _Function(None, name), args, kwargs, device)
        try:
            with _disable_current_modes(), simulation.kernels.running(), torch.no_grad():
                out = rule(call)
        finally:
            call.finish()
        moved = num_bytes(args) + num_bytes(tuple(kwargs.values())) + num_bytes(out)
        device.tape.ran(Operation(UNREAD, *simulation.origins.doing(), num_bytes=moved))
        return out

    run.__name__ = run.__qualname__ = name.rpartition(".")[2]
    return run


def _compiled(name: str) -> Callable[..., Any]:
    """The function itself, for who kept a stand-in's beyond the simulation."""
    module, _, function = name.rpartition(".")
    try:
        compiled: Callable[..., Any] = getattr(importlib.import_module(module), function)
    except ImportError:
        raise Unsupported(
            "{} stands in for a compiled function while a simulation runs, and none runs now", name
        ) from None
    return compiled


def unread(name: str) -> Callable[..., Any]:
    """A compiled function of which nobody has read what it allocates."""

    def refuse(*_args: Any, **_kwargs: Any) -> Any:
        raise Unsupported(
            "{} is a compiled function of which it is not known what it allocates; trace the step without it, or with "
            "the operators of PyTorch in its place", name
        )

    return refuse


def _device_of(simulation: Simulation, values: Any) -> Device | None:
    """Of the first tensor on a simulated device; without any tensor the current one."""
    has_tensors = False
    for tensor in all_tensors(values):
        resident = simulation.memory.of(tensor)
        if resident is not None and resident.device in simulation.memory.devices:
            return resident.device
        has_tensors = True
    return None if has_tensors else simulation.memory.devices[simulation.memory.current]


def unbuilt(simulation: Simulation, build: Any, /, name: str, *args: Any, **kwargs: Any) -> StandIn:
    """What `torch.utils.cpp_extension` would compile: its source is read."""
    simulation.assumptions.note(Note(TAKEN, name, "the script"))
    return StandIn(name, Extension("", "", kernels_of(signature(build).bind(name, *args, **kwargs).arguments)))


def graph_unread(_simulation: Simulation, _graph: Any, /, model: Any, args: Any, *_rest: Any, **_kwargs: Any) -> Any:
    """A graph of `torch.utils.tensorboard`: torch.jit cannot trace tensors without data; the module runs."""
    library: Any = importlib.import_module("torch.utils.tensorboard._pytorch_graph")
    with library._set_model_to_eval(model):
        model(*(args if isinstance(args, (list, tuple)) else (args,)))
    return library.GraphDef(versions=library.VersionDef(producer=22)), library.RunMetadata()


def folder_of_log(_simulation: Simulation, make: Any, /, self: Any, log_dir: Any, *args: Any, **kwargs: Any) -> None:
    """What `torch.utils.tensorboard` writes to is there, whoever writes: scripts keep more beside it."""
    Path(log_dir).mkdir(parents=True, exist_ok=True)
    make(self, log_dir, *args, **kwargs)


class Finder(MetaPathFinder, Loader):
    """Finds stand-ins before the modules themselves, which need the card."""

    def __init__(
        self, simulation: Simulation, extensions: Mapping[str, Extension], guarded: Mapping[str, Guard]
    ) -> None:
        self._simulation, self._extensions, self._guarded = simulation, extensions, guarded

    def find_spec(self, fullname: str, path: Any, target: Any = None) -> ModuleSpec | None:
        guard = self._guarded.get(fullname)
        if guard is not None:
            spec = PathFinder.find_spec(fullname, path)
            if spec is not None and isinstance(spec.loader, SourceFileLoader):
                spec.loader = Guarded(spec.loader, guard)
            return spec
        extension = self._extensions.get(fullname)
        if extension is None or not is_installed(extension):
            return None
        return ModuleSpec(fullname, self)

    def create_module(self, spec: ModuleSpec) -> ModuleType:
        extension = self._extensions[spec.name]
        simulation = self._simulation
        simulation.assumptions.note(Note(TAKEN, spec.name, extension.library))
        return StandIn(spec.name, extension)

    def exec_module(self, module: ModuleType) -> None:
        """It is complete."""


class Guarded(Loader):
    """Runs a module of a library within a guard."""

    def __init__(self, loader: SourceFileLoader, guard: Guard) -> None:
        self._loader, self._guard = loader, guard

    def create_module(self, spec: ModuleSpec) -> ModuleType | None:
        return self._loader.create_module(spec)

    def exec_module(self, module: ModuleType) -> None:
        """And what becomes of it."""
        with variables(WITHIN.get(module.__name__, {})):
            self._loader.exec_module(module)
        if callable(self._guard):
            self._guard(module)
        else:
            answer_in(module, self._guard)


def is_installed(extension: Extension) -> bool:
    """Whether the library is there, and not another of the same name."""
    spec = PathFinder.find_spec(extension.library)
    return spec is not None and any(
        (Path(folder) / extension.part).exists() for folder in spec.submodule_search_locations or ()
    )


@contextmanager
def standing_in(
    patches: Patches, simulation: Simulation, extensions: Mapping[str, Extension], guarded: Mapping[str, Guard],
    libraries: frozenset[str],
) -> Iterator[None]:
    """Within: compiled modules are stand-ins; libraries that were imported before see them too.

    Modules of `libraries` that are imported within are forgotten at the end.
    """
    before = set(sys.modules)
    for name, extension in extensions.items():
        loaded = sys.modules.get(name)
        if loaded is not None and not isinstance(loaded, StandIn):
            for function, rule in extension.kernels.items():
                patches.set(loaded, function, kernel(f"{name}.{function}", rule))
    finder = Finder(simulation, extensions, guarded)
    sys.meta_path.insert(0, finder)
    try:
        with answering(simulation):
            yield
    finally:
        sys.meta_path.remove(finder)
        _forget(before, lambda name: _root(name) in libraries or name in extensions)


def _forget(before: set[str], is_meant: Callable[[str], bool]) -> None:
    """Modules that were imported since, and those that hold something of them."""
    names = {name for name in sys.modules if name not in before and is_meant(name)}
    while names:
        gone = {name: sys.modules.pop(name) for name in names}
        names = {
            name for name in sys.modules
            if name not in before and _root(name) not in DEFINE_ONCE and _holds(sys.modules[name], gone)
        }


def _holds(module: ModuleType, gone: Mapping[str, ModuleType]) -> bool:
    """Whether one of the modules, or a class or function of theirs, is among a module's names."""
    for value in list(getattr(module, "__dict__", {}).values()):
        if isinstance(value, ModuleType):
            if value.__name__ in gone:
                return True
        elif isinstance(value, (type, FunctionType)) and value.__module__ in gone:
            return True
    return False


class NeedsCard(BaseException):
    """A library that asks for the card is about to be imported; no `except Exception` of its users hides that."""


class Detector(MetaPathFinder):
    """Stops the import of such a library, or of a compiled module of one."""

    def __init__(self, libraries: frozenset[str], extensions: Mapping[str, Extension]) -> None:
        self._libraries, self._extensions = libraries, extensions

    def find_spec(self, fullname: str, path: Any, target: Any = None) -> None:
        del path, target
        extension = self._extensions.get(fullname)
        if extension is not None and is_installed(extension):
            raise NeedsCard(fullname)
        if fullname in self._libraries and PathFinder.find_spec(fullname) is not None:
            raise NeedsCard(fullname)


@contextmanager
def detecting(libraries: frozenset[str], extensions: Mapping[str, Extension]) -> Iterator[None]:
    """Within: importing one of the libraries or of their compiled modules raises NeedsCard."""
    detector = Detector(libraries, extensions)
    sys.meta_path.insert(0, detector)
    try:
        yield
    finally:
        sys.meta_path.remove(detector)


def _root(name: str) -> str:
    return name.partition(".")[0]


XFORMERS_TAKEN: Final = "the compiled part of xformers is taken to be built"

IMPORTED_BEFORE: Final = "xformers was imported outside of the simulation: its attention is taken to be CUTLASS's"
ASKS: Final = ("xformers._cpp_lib", "xformers.ops.fmha.common")
"""Modules that remember whether the compiled part is there."""
FLASH: Final = "xformers.ops.fmha.flash"


def patch_loading(patches: Patches, simulation: Simulation) -> None:
    """Let torchvision and xformers go on without their compiled parts, also where xformers is imported already."""
    load = with_stand_ins(torch.ops.load_library)
    go_on = partial(simulation.assumptions.note, XFORMERS_TAKEN)
    patches.set(torch.ops, "load_library", unless_loads(load, "xformers", go_on))
    for name in ASKS:
        module = sys.modules.get(name)
        if module is not None and not vars(module).get("_built_with_cuda", True):
            patches.set(module, "_built_with_cuda", True)
    flash = sys.modules.get(FLASH)
    if flash is not None and not hasattr(flash, "_flash_fwd"):
        simulation.assumptions.note(IMPORTED_BEFORE)


COMMENT: Final = re.compile(r"//[^\n]*|/\*.*?\*/", re.DOTALL)
FUNCTION: Final = r"(?P<made>void|(?:at|torch)::Tensor)\s+{}\s*\((?P<taken>[^)]*)\)\s*\{{"
BOUND: Final = re.compile(r"\bm\.def\(\s*\"(\w+)\"\s*,\s*&?(?:\w+::)*(\w+)\s*[,)]")
TENSOR: Final = re.compile(r"\bTensor\s*&?\s*(\w+)\s*$")
LIKE: Final = re.compile(
    r"(?:auto|(?:at|torch)::Tensor)\s+(?P<name>\w+)\s*=\s*(?:at|torch)::(?:empty|ones|zeros)_like"
    r"\(\s*(?P<of>\w+)\s*\)\s*;"
)
ALLOCATES: Final = re.compile(
    r"\b(?:at|torch)::[a-z]\w*\s*\(|\bcudaMalloc|\bcub::|\bthrust::|\ballocate\s*\(|\bDataPtr\b|"
    r"\.\s*(?:clone|contiguous|copy_|flatten|new_\w+|repeat\w*|reshape|sum|to|toType|type_as|zeros)\s*\("
)
RETURNED: Final = re.compile(r"\breturn\s+(\w+)\s*;")


def kernels_of(given: Mapping[str, Any]) -> dict[str, Rule]:
    """By the arguments of a build."""
    files = [Path(str(name)) for name in _several(given.get("sources"))]
    texts = [file.read_text(encoding="utf-8", errors="replace") for file in files if file.is_file()]
    texts += [*_several(given.get("cpp_sources")), *_several(given.get("cuda_sources"))]
    bound = {name: name for name in _several(given.get("functions"))} | dict(BOUND.findall("\n".join(texts)))
    return {} if len(texts) < len(files) else dict(kernels_in(bound, texts))


def _several(given: Any) -> Sequence[str]:
    return [given] if isinstance(given, str) else [*(given or ())]


def kernels_in(functions: Mapping[str, str], sources: Sequence[str]) -> Iterator[tuple[str, Rule]]:
    """Function -> what it does, of those that are understood; the whole text may not allocate but as they do."""
    text = COMMENT.sub("", "\n".join(sources))
    if ALLOCATES.search(LIKE.sub("", text)):
        return
    for name, bound in functions.items():
        found = re.search(FUNCTION.format(re.escape(bound)), text)
        if found is None:
            continue
        body = _body(text, found.end())
        taken = [(match := TENSOR.search(one)) and match[1] for one in found["taken"].split(",")]
        made = {match["name"]: match["of"] for match in LIKE.finditer(body)}
        result = "" if found["made"] == "void" else next(iter(RETURNED.findall(body)), "")
        known = {*filter(None, taken), *made}
        if known.issuperset(made.values()) and (result in known or found["made"] == "void"):
            yield name, _rule(taken, made, result)


def _body(text: str, start: int) -> str:
    """From behind a brace to the one that closes it."""
    depth, end = 1, start
    while depth and end < len(text):
        depth += {"{": 1, "}": -1}.get(text[end], 0)
        end += 1
    return text[start:end]


def _rule(taken: Sequence[str | None], made: dict[str, str], result: str) -> Rule:
    def run(call: Call) -> Any:
        tensors: dict[str, torch.Tensor] = {
            name: value for name, value in zip(taken, call.args, strict=False) if name is not None
        }
        for name, of in made.items():
            meta = torch.empty_like(tensors[of], device="meta")
            tensors[name] = call.empty(meta.size(), dtype=meta.dtype, strides=meta.stride())
        return tensors[result] if result else None

    return run
