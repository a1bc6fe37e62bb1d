"""`torch.compile` as torch compiles: Dynamo's graphs, AOTAutograd's partition, Inductor's fusion and plan of buffers.

torch's own compiler runs, without a GPU. Its fake tensors say on the card where Python asks and without data where C++
asks, which else looks for the library of the device; what simulations replace is as it was meanwhile. The program that
Inductor writes then runs in the simulation: its buffers come from the simulated allocator, calls of cuBLAS and of other
operators take their workspaces, kernels of Triton take no memory, are never made, and move what their source reads and
writes.

Left out: pools of CUDA graphs, trials of autotuning (`mode=`), and the buffers of a kernel's first launch, which times
several configurations. What torch cannot compile here runs eagerly, and the answer says so.

[inductor] pytorch torch/_inductor: compile_fx.py, scheduler.py, codegen/wrapper.py `PythonWrapperCodegen`: lines that
allocate, reuse and free buffers; async_compile.py `AsyncCompile.triton`
[dynamo] torch/_dynamo/convert_frame.py `_compile`; config.py `suppress_errors`: a frame that fails runs eagerly
[rng] torch/_prims/rng_prims.py `run_and_save_rng_state`, `run_with_rng_state`
[states] torch/_dynamo/variables/optimizer.py `OptimizerVariable.call_method`
[guards] torch/_dynamo/guards.py: what is asked before compiled code runs; functions of torch are others in a
simulation, so whether they are the same is not asked
[bytes] torch/_inductor/codegen/simd.py `estimate_kernel_num_bytes`: the same, of what the compiler knows
[fake] torch/_subclasses/fake_tensor.py `FakeTensor.__torch_dispatch__`: prim.device is what C++ asks
"""

from __future__ import annotations

import logging
import math
import re
import warnings
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from functools import cache, partial, wraps
from typing import TYPE_CHECKING, Any, Final

import torch
from torch._dynamo.exc import BackendCompilerFailed, InternalTorchDynamoError, TorchRuntimeError
from torch.nn.modules import module as modules

from vramcast.errors import Note
from vramcast.timing.roofline import Operation
from vramcast.tracing.composites import attention
from vramcast.tracing.environment.patches import Patches

if TYPE_CHECKING:
    from vramcast.tracing.simulation import Simulation

META: Final = torch.device("meta")
DEVICE: Final = "cuda"
PACKAGE: Final = __name__.partition(".")[0]

SEEN: Final = frozenset({"device", "is_cuda", "is_cpu", "is_meta", "get_device"})
"""Of a tensor, that the compiler reads as the script does."""
STREAMS: Final = frozenset({"Stream", "Event", "stream", "StreamContext", "_maybe_exchange_device"})
"""Of torch.cuda, that it knows by what they are."""
OF_IDENTITY: Final = frozenset({"ID_MATCH", "FUNCTION_MATCH", "CLOSURE_MATCH", "BUILTIN_MATCH", "MODULE_MATCH"})
"""Guards that ask whether an object is the same [guards]."""
TRIALS: Final = (
    "max_autotune", "max_autotune_gemm", "max_autotune_pointwise", "coordinate_descent_tuning", "triton.cudagraphs",
)
"""Options of Inductor that run kernels to choose, or keep pools of their own."""
ALONE: Final[dict[str, Any]] = {
    "force_disable_caches": True, "compile_threads": 1, "size_asserts": False, "alignment_asserts": False,
}
"""No other process, nothing kept, no check of how operators lay out what they return: cuDNN keeps channels last where
they are, tensors without data do not always."""
FAILED: Final = "torch.compile: {} could not be compiled here and runs eagerly ({})"
SILENT: Final = (r"Using `torch\.compile\(module\)` when there are global hooks", "dynamo_pgo force disabled")
"""Warnings about what a simulation does, not the script."""


class Compiler:
    """Compiles for one simulated card."""

    def __init__(self, patches: Patches, simulation: Simulation) -> None:
        """Loads torch's compiler."""
        import torch._inductor.compile_fx as inductor
        from torch._dynamo import config, convert_frame
        from torch._dynamo.variables.optimizer import OptimizerVariable
        from torch._functorch import config as autograd_config
        from torch._inductor import config as inductor_config

        self._patches, self._simulation = patches, simulation
        self._is_lifted, self._above = False, ExitStack()
        self._instead = [*_answers(simulation)]
        for changed in (
            config.patch(suppress_errors=True), inductor_config.patch(**ALONE), warnings.catch_warnings(),
            autograd_config.patch(graphsafe_rng_functionalization=False),  # states that only CUDA graphs need
        ):
            changed.__enter__()
            patches.at_exit(partial(changed.__exit__, None, None, None))
        for message in SILENT:
            warnings.filterwarnings("ignore", message)
        _quiet(patches)
        torch._dynamo.trace_rules.add(PACKAGE)  # what a simulation does is none of the code that is compiled
        _patch_fakes(patches)
        patches.set(convert_frame, "_compile", self._apart(self._frame(convert_frame._compile)))
        patches.set(inductor, "_compile_fx_inner", self._apart(_placed(inductor._compile_fx_inner)))
        patches.set(inductor, "compile_fx_backward", self._apart(self._backward(inductor.compile_fx_backward)))
        patches.set(OptimizerVariable, "call_method", self._by_script(OptimizerVariable.call_method))
        _run_recomputed(patches, type(simulation))
        patches.set(torch._C._dynamo.guards, "_empty_strided_cuda", _buffer)
        patches.at_exit(_forget)
        libraries = [torch.library.Library("aten", "IMPL", key) for key in ("AutogradCUDA", "CUDA")]
        libraries[0].impl("scaled_dot_product_attention", partial(attention.attention, simulation))
        for name in ("empty.memory_format", "empty_strided"):
            libraries[1].impl(name, partial(_on_host, getattr(torch.ops.aten, name.partition(".")[0])))
        for library in libraries:
            patches.at_exit(library._destroy)

    def __call__(self, function: Any, options: dict[str, Any]) -> Any:
        """What `torch.compile(function, **options)` returns.

        Args:
            options: of `torch.compile` but for `backend`, which is Inductor
        """
        network = getattr(function, "__self__", None)
        if isinstance(network, torch.nn.Module) and function.__name__ == "_call_impl":
            network.forward = self(network.forward, options)  # of `Module.compile`: hooks stay around what it compiles
            return function
        real = self._patches.original(torch, "compile")
        mode = options.pop("mode", None)
        set_ = torch._inductor.list_mode_options(mode, options.get("dynamic")) if mode else {}
        set_ |= options.pop("options", None) or {}
        set_ |= dict.fromkeys(TRIALS, False) | {"guard_filter_fn": _kept}
        options = {name: value for name, value in options.items() if name != "fullgraph"}
        with self.lifted():
            compiled = real(function, options=set_, **options)
        if isinstance(function, torch.nn.Module):
            compiled.forward = _without_hooks(compiled.forward)
            return compiled
        return _without_hooks(compiled)

    @contextmanager
    def lifted(self) -> Iterator[None]:
        """Within: torch is as its compiler knows it, with a card."""
        if self._is_lifted:
            yield
            return
        self._lift()
        try:
            yield
        finally:
            self._lower()

    def _lift(self) -> None:
        self._is_lifted, self._simulation.compiles_for = True, _sm(self._simulation)
        for each in (self._patches.lifted(_is_lifted, self._instead), self._simulation.suspended(), _taken_apart()):
            self._above.enter_context(each)

    def _lower(self) -> None:
        self._above.close()
        self._is_lifted, self._simulation.compiles_for = False, 0

    def _by_script(self, call_method: Callable[..., Any]) -> Callable[..., Any]:
        """What an optimizer holds is made by its own code while the compiler reads it [states]: in the simulation."""

        def lowered(function: Callable[..., Any], *args: Any) -> Any:
            self._lower()
            try:
                with self._simulation:
                    return function(*args)
            finally:
                self._lift()

        @wraps(call_method)
        def called(variable: Any, tx: Any, name: str, *args: Any) -> Any:
            optimizer = variable.value
            if name != "_init_group" or not hasattr(optimizer, name):
                return call_method(variable, tx, name, *args)
            optimizer._init_group = partial(lowered, optimizer._init_group)
            try:
                return call_method(variable, tx, name, *args)
            finally:
                del optimizer._init_group

        return called

    def _frame(self, compile_: Callable[..., Any]) -> Callable[..., Any]:
        """Dynamo runs a frame eagerly that fails [dynamo]: that is said."""

        @wraps(compile_)
        def compiled(code: Any, *args: Any, **kwargs: Any) -> Any:
            try:
                return compile_(code, *args, **kwargs)
            except (BackendCompilerFailed, InternalTorchDynamoError, TorchRuntimeError) as error:
                self._note_failure(code.co_name, error)
                raise

        return compiled

    def _backward(self, compile_: Callable[..., Any]) -> Callable[..., Any]:
        """A backward that cannot be compiled runs operator by operator."""

        @wraps(compile_)
        def compiled(graph: Any, *args: Any, **kwargs: Any) -> Any:
            try:
                return compile_(graph, *args, **kwargs)
            except Exception as error:  # whatever the compiler stumbles over
                self._note_failure("a backward", error)
                return torch._functorch.aot_autograd.make_boxed_func(graph.forward)

        return compiled

    def _note_failure(self, what: str, error: Exception) -> None:
        lines = [line for line in str(error).splitlines() if line and not line.startswith("backend=")]
        reason = lines[0][:200] if lines else type(error).__name__
        self._simulation.assumptions.note(Note(FAILED, what, reason), self._simulation.origins.place())

    def _apart(self, function: Callable[..., Any]) -> Callable[..., Any]:
        @wraps(function)
        def apart(*args: Any, **kwargs: Any) -> Any:
            with self.lifted():
                return function(*args, **kwargs)

        return apart


def _is_lifted(owner: Any, name: str) -> bool:
    """Whether the compiler sees what a simulation replaced as it was."""
    if owner is torch.Tensor:
        return name not in SEEN
    if owner is torch.cuda:
        return name in STREAMS
    return name == "__torch_function__" or owner in (
        torch, torch._C._nn, torch.autograd, torch.nn.RNNBase, torch._dynamo.external_utils
    )


def _answers(simulation: Simulation) -> Iterator[tuple[Any, str, Any]]:
    """What the compiler is told while it compiles: owner, name, value."""
    from torch._dynamo.device_interface import CudaInterface
    from torch._dynamo.repro import after_aot
    from torch._inductor import async_compile, scheduler
    from torch._inductor.codegen import wrapper
    from torch._inductor.fx_passes import joint_graph
    from torch._subclasses import fake_tensor
    from torch.utils import _triton

    fake = fake_tensor.FakeTensor
    make, patterns = fake.__new__, joint_graph.lazy_init

    def made(cls: Any, mode: Any, element: Any, device: torch.device, *args: Any, **kwargs: Any) -> Any:
        there = torch.device(DEVICE, simulation.memory.current) if device.type == "meta" else device
        return make(cls, mode, element, there, *args, **kwargs)

    def properties(device: Any = None) -> Any:
        return torch.cuda.get_device_properties(device)  # of the moment: the class keeps torch's own

    yield fake, "__new__", staticmethod(made)
    for kind in ("meta", "cuda", "cpu"):
        yield fake, f"is_{kind}", property(partial(_is_on, kind=kind))
    # constants are made on the host and moved as fake tensors are
    yield fake_tensor.FakeTensorMode, "avoid_device_init", property(lambda _self: True, lambda _self, _value: None)
    yield torch.accelerator, "is_available", lambda: False  # which would make a stream
    yield torch.cuda, "_maybe_exchange_device", lambda _index: simulation.memory.current
    yield joint_graph, "lazy_init", lambda _device=None: patterns(torch.device("cpu"))  # the same on every device
    for owner in (CudaInterface, CudaInterface.Worker):
        yield owner, "get_device_properties", staticmethod(properties)
    yield CudaInterface, "is_available", staticmethod(lambda: True)
    yield CudaInterface, "get_compute_capability", staticmethod(lambda _device=None: _sm(simulation))
    yield CudaInterface.Worker, "current_device", staticmethod(lambda: simulation.memory.current)
    yield after_aot, "_cuda_system_info_comment", lambda: ""  # which would start nvcc
    yield scheduler, "has_triton", lambda *_device: True
    yield _triton, "triton_hash_with_backend", lambda: ""
    code = wrapper.PythonWrapperCodegen
    yield code, "write_triton_header_once", code.write_get_raw_stream_header
    yield async_compile.AsyncCompile, "triton", lambda _self, name, text, *_, **_more: _Kernel(name, text, simulation)


def _quiet(patches: Patches) -> None:
    """Dynamo logs the frames that it cannot compile at length; the answer says them in a line."""
    log = logging.getLogger("torch._dynamo")
    patches.at_exit(partial(log.setLevel, log.level))
    log.setLevel(logging.ERROR)


def _patch_fakes(patches: Patches) -> None:
    """Where C++ asks, tensors are without data: asked for the library of another device it would end the process."""
    from torch._subclasses import fake_tensor

    fake, asked = fake_tensor.FakeTensor, torch.ops.prim.device.default
    dispatch = vars(fake)["__torch_dispatch__"].__func__

    def dispatched(cls: Any, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return META if func is asked else dispatch(cls, func, types, args, kwargs)

    patches.set(fake, "__torch_dispatch__", classmethod(dispatched))
    patches.set(fake_tensor, "_DISPATCH_META_HANDLERS", {**fake_tensor._DISPATCH_META_HANDLERS, asked: lambda _: META})


def _run_recomputed(patches: Patches, mode: type) -> None:
    """Operators that draw, run once more in the backward of a checkpoint with the state that the first run had [rng].

    The state is 16 bytes on the host, and nothing here is drawn: it stays as it is.
    """
    from torch._prims.rng_prims import run_and_save_rng_state, run_with_rng_state

    def first(simulation: Any, op: Any, *args: Any, **kwargs: Any) -> Any:
        with simulation:
            return torch.empty(16, dtype=torch.uint8, device="cpu"), op(*args, **kwargs)

    def again(simulation: Any, _state: torch.Tensor, op: Any, *args: Any, **kwargs: Any) -> Any:
        with simulation:
            return op(*args, **kwargs)

    patches.put(run_and_save_rng_state.python_key_table, mode, first)
    patches.put(run_with_rng_state.python_key_table, mode, again)


@contextmanager
def _taken_apart() -> Iterator[None]:
    """Within: operators that are made of others are so on tensors without data, too, as they are on a card.

    Python kernels for those would hide it from autograd [torch/_ops.py `resolve_key`].
    """
    key = torch._C.DispatchKey.Meta
    kept = [(op, op.py_kernels.pop(key)) for op in _composites() if key in op.py_kernels]
    for op, _ in kept:
        op._dispatch_cache.clear()
    try:
        yield
    finally:
        for op, kernel in kept:
            op.py_kernels[key] = kernel
            op._dispatch_cache.clear()


@cache
def _composites() -> tuple[Any, ...]:
    """Operators made of others that have a kernel in Python for tensors without data, loaded by now."""
    key, made = torch._C.DispatchKey.Meta, torch._C.DispatchKey.CompositeImplicitAutograd
    packets = (getattr(torch.ops.aten, name) for name in dir(torch.ops.aten))
    ops = [getattr(packet, name) for packet in packets if hasattr(packet, "overloads") for name in packet.overloads()]
    return tuple(
        op for op in ops if key in op.py_kernels and not op.name().endswith("_backward")  # which have kernels on cards
        and torch._C._dispatch_has_kernel_for_dispatch_key(op.name(), made.name)
    )


def _is_on(tensor: Any, *, kind: str) -> bool:
    return bool(tensor.fake_device.type == kind)


ACCESS: Final = re.compile(r"\btl\.(load|store|atomic_\w+)\((\w+)\b")


class _Kernel:
    """A kernel of Triton's that is never made: it takes no memory, and what it writes is not known afterwards.

    Each load or store of its source moves an element for each of the kernel's range, or all of a smaller tensor: a
    table is read at the rows that are looked up [bytes].
    """

    def __init__(self, name: str, source: str, simulation: Simulation) -> None:
        self.name, self._simulation = name, simulation
        head = re.search(rf"^def {re.escape(name)}\(([^)]*)\)", source, re.MULTILINE)
        self._names = [word.strip() for word in head[1].split(",")] if head else []
        kinds = (("load", "atomic"), ("store", "atomic"))
        found = ACCESS.findall(source)
        self._accesses = [Counter(name for kind, name in found if kind.startswith(some)) for some in kinds]

    def run(self, *args: Any, **_launch: Any) -> None:
        memory = self._simulation.memory
        named = list(zip(self._names, args, strict=False)) or [("", each) for each in args]
        ranges = [int(each) for name, each in named if name.endswith("numel")]
        moved, card = 0, None
        for name, each in named:
            resident = memory.of(each) if isinstance(each, torch.Tensor) else None
            if resident is not None:
                self._simulation.values.lose(each)
                moved += self._elements(name, each.numel(), math.prod(ranges) if ranges else None) * each.element_size()
                card = memory.card_of(each) or card
        if card is not None:
            card.tape.ran(Operation("pointwise", *self._simulation.origins.doing(), num_bytes=moved))

    def _elements(self, name: str, whole: int, each: int | None) -> int:
        """That are read and written of an argument; all of it where the source does not say."""
        counts = [some[name] for some in self._accesses]
        if each is None or not any(counts):
            return whole
        return sum(min(whole, count * each) for count in counts)


def _buffer(size: Any, stride: Any, dtype: torch.dtype) -> torch.Tensor:
    return torch.empty_strided(size, stride, dtype=dtype, device=DEVICE)


def _on_host(make: Any, *args: Any, device: Any = None, pin_memory: Any = None, **kwargs: Any) -> torch.Tensor:
    """Constants that the compiler works out where they will be: here they can only be on the host."""
    del device, pin_memory
    made: torch.Tensor = make(*args, device="cpu", **kwargs)
    return made


def _sm(simulation: Simulation) -> int:
    return simulation.memory.devices[simulation.memory.current].sm


def _kept(guards: Any) -> list[bool]:
    return [guard.guard_type not in OF_IDENTITY for guard in guards]


def _placed(compile_inner: Callable[..., Any]) -> Callable[..., Any]:
    """Tensors that a graph makes where C++ said, on meta, are on the card."""

    @wraps(compile_inner)
    def placed(graph: Any, *args: Any, **kwargs: Any) -> Any:
        card = torch.device(DEVICE, torch.cuda.current_device())

        def there(value: Any) -> Any:
            return card if isinstance(value, torch.device) and value.type == "meta" else value

        for node in graph.graph.nodes:
            node.args = torch.fx.node.map_aggregate(node.args, there)
            node.kwargs = torch.fx.node.map_aggregate(node.kwargs, there)
        graph.recompile()
        return compile_inner(graph, *args, **kwargs)

    return placed


HOOKS: Final = ("_global_forward_pre_hooks", "_global_forward_hooks")


def _without_hooks(function: Callable[..., Any]) -> Callable[..., Any]:
    """The simulation's own hooks are none of the code that is compiled."""

    @wraps(function)
    def call(*args: Any, **kwargs: Any) -> Any:
        kept = [(table := getattr(modules, name), dict(table)) for name in HOOKS]
        for table, _ in kept:
            table.clear()
        try:
            return function(*args, **kwargs)
        finally:
            for table, hooks in kept:
                table.update(hooks)

    return call


def _forget() -> None:
    """Compiled code and what was cached of the card."""
    from torch._inductor.runtime.hints import DeviceProperties

    torch._dynamo.reset()
    DeviceProperties.create.cache_clear()
