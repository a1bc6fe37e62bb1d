"""Parts of torch.nn, and what compiles: `torch.compile`, FlexAttention, kernels in Triton.

What Inductor compiles on one rank is compiled (compiling.py); other backends, and ranks among others, run eagerly:
what is fused has fewer temporaries and saves fewer activations. FlexAttention is fused only where it is compiled, and
a build without CUDA cannot trace it; gradients of tensors that a score modification captures are left out. Launching a
kernel of Triton allocates nothing, so none is compiled or run, and what it writes is not known afterwards; autotuning
takes its first configuration and, like Triton's benchmark, a buffer of the size of the card's cache on the way. Nested
tensors, which TransformerEncoder makes of padded batches in eval mode, are not simulated: padding stays in.
[flex] torch._inductor.kernel.flex.flex_attention of torch 2.13: the forward gives the output and one statistic a row;
the backward takes one more for the row sums, then the gradients
[run] triton python/triton/runtime/jit.py `JITFunction.run`, autotuner.py `Autotuner.run`
[bench] triton python/triton/testing.py `do_bench`, third_party/nvidia/backend/driver.py
`get_empty_cache_for_benchmark`: 256 MiB, to clear the cache between runs
[flatten] pytorch torch/nn/modules/rnn.py `RNNBase.flatten_parameters`; aten/src/ATen/native/cudnn/RNN.cpp
`_cudnn_rnn_flatten_weight`
[encoder] torch/nn/modules/transformer.py `TransformerEncoder.forward` asks first whether the padding stands at the end
"""

from __future__ import annotations

import sys
from collections.abc import Iterable
from functools import partial
from typing import Any, Final

import torch

from vramcast.tracing.environment.patches import Patches
from vramcast.tracing.simulation import Simulation
from vramcast.units import MIB

EAGER: Final = (
    "torch.compile over several ranks, with another backend than Inductor, or for a card or a torch that Inductor is "
    "not run for here, is not modelled: the step is traced as it runs eagerly; compiled, fused operators keep fewer "
    "tensors, reordered ones and autotuning may hold more"
)
GRAPHED: Final = "torch.compile runs without CUDA graphs; theirs keep a pool of their own"
GRAPH_MODES: Final = ("reduce-overhead", "max-autotune")
COMPILED: Final = "kernels compiled from CUDA source allocate nothing: what they write is not known afterwards"
GRAPH_TREES: Final = ("_cuda_CUDAAllocator_AllocatorState", "_set_cached_tensors_enabled")
"""That torch's module of graphs takes from a build with CUDA when `torch._dynamo.reset` loads it."""


def patch_compile(patches: Patches, simulation: Simulation) -> None:
    """Replace `torch.compile`; `Module.compile` asks it, too."""
    from torch._dynamo.eval_frame import OptimizedModule

    class Eager(OptimizedModule):  # what scripts unwrap by `_orig_mod`
        def __call__(self, *args: Any, **kwargs: Any) -> Any:
            return self._orig_mod(*args, **kwargs)

    found: list[Any] = []

    def compiler() -> Any:
        """Inductor's; None where this version of torch has it otherwise, or the card is none that it is known for."""
        if not found:
            from vramcast.tracing.environment.compiling import Compiler

            try:
                found.append(Compiler(patches, simulation) if simulation.memory.devices[0].sm else None)
            except (ImportError, AttributeError):
                found.append(None)
        return found[0]

    def compiled(model: Any = None, *, backend: Any = "inductor", disable: bool = False, **options: Any) -> Any:
        if model is None:
            return partial(compiled, backend=backend, disable=disable, **options)
        if options.get("mode") in GRAPH_MODES:
            simulation.assumptions.note(GRAPHED, simulation.origins.place())
        if backend == "inductor" and not disable and not _has_peers() and compiler() is not None:
            return compiler()(model, options)
        simulation.assumptions.note(EAGER, simulation.origins.place())
        return Eager(model, _as_it_is) if isinstance(model, torch.nn.Module) else model

    patches.set(torch, "compile", compiled)
    patches.set(torch.compiler, "cudagraph_mark_step_begin", lambda: None)
    for name in GRAPH_TREES:
        patches.set(torch._C, name, _as_it_is)
    # A forward without a method of its own would lead into the compiler's inlining.
    patches.set(torch._dynamo.external_utils, "wrap_inline", _as_it_is)


def _has_peers() -> bool:
    group = torch.distributed
    return bool(group.is_available() and group.is_initialized() and group.get_world_size() > 1)


def _as_it_is(function: Any) -> Any:
    return function


FUSED: Final = "flex_attention runs as its compiled kernel"


class _Fused(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor) -> Any:
        out = query.new_empty((*query.shape[:-1], value.shape[-1]))
        statistic = query.new_empty(query.shape[:-1], dtype=torch.float32)
        ctx.save_for_backward(query, key, value, out, statistic)
        ctx.mark_non_differentiable(statistic)
        return out, statistic

    @staticmethod
    def backward(ctx: Any, *_gradients: Any) -> Any:
        query, key, value, _, statistic = ctx.saved_tensors
        sums = torch.empty_like(statistic)
        found = tuple(torch.empty_like(each) for each in (query, value, key))
        del sums
        return found[0], found[2], found[1]


def patch_flex(patches: Patches, simulation: Simulation) -> None:
    """Replace `flex_attention`; masks of blocks are made by torch's own code."""
    from torch.nn.attention import flex_attention as module

    real = module.flex_attention

    def flex_attention(query: Any, key: Any, value: Any, *args: Any, return_lse: bool = False, **kwargs: Any) -> Any:
        if simulation.memory.of(query) is None or kwargs.get("return_aux") is not None:
            return real(query, key, value, *args, return_lse=return_lse, **kwargs)
        simulation.assumptions.note(FUSED, simulation.origins.place())
        out, statistic = _Fused.apply(query, key, value)
        return (out, statistic) if return_lse else out

    patches.set(module, "flex_attention", flex_attention)


def patch_sources(patches: Patches, simulation: Simulation) -> None:
    """Replace `torch.cuda._compile_kernel`: a launch takes no memory, and there is no compiler for it here."""

    def compiled(_source: str, name: str, *_options: Any, **_named: Any) -> Any:
        def launched(grid: Any = None, block: Any = None, args: Any = (), *_rest: Any, **_how: Any) -> None:
            del grid, block
            simulation.assumptions.note(COMPILED, simulation.origins.place())
            for tensor in _simulated(args or (), simulation):
                simulation.values.lose(tensor)

        launched.__name__ = name
        vars(launched)["set_shared_memory_config"] = lambda _num_bytes: None  # as `_CudaKernel` has it
        return launched

    patches.set(torch.cuda, "_compile_kernel", compiled)


CLEARED_BYTES: Final = 256 * MIB
ANY_TIME: Final = (1.0, 1.0, 1.0)
"""What every configuration is said to take: the first one wins [ms]."""


def patch_triton(patches: Patches, simulation: Simulation) -> None:
    """Replace launches, if Triton is installed: torch's compiler, which is loaded by now, imports it."""
    jit, autotuner = (sys.modules.get(f"triton.runtime.{name}") for name in ("jit", "autotuner"))
    if jit is None or autotuner is None:
        return
    launch, tune = jit.JITFunction.run, autotuner.Autotuner.run
    chosen: dict[Any, Any] = {}  # of this simulation alone: on a card other configurations may be faster

    def launched(self: Any, *args: Any, grid: Any, warmup: bool, **kwargs: Any) -> Any:
        written = _simulated((*args, *kwargs.values()), simulation)
        if not written:
            return launch(self, *args, grid=grid, warmup=warmup, **kwargs)
        for hook in self.pre_run_hooks:
            hook(*args, **kwargs)
        for tensor in written:
            simulation.values.lose(tensor)
        return None

    def tuned(self: Any, *args: Any, **kwargs: Any) -> Any:
        if not _simulated((*args, *kwargs.values()), simulation):
            return tune(self, *args, **kwargs)
        kept, self.cache = self.cache, chosen.setdefault(self, {})
        results, self.cache_results = self.cache_results, False  # written to a file otherwise
        try:
            return tune(self, *args, **kwargs)
        finally:
            self.cache, self.cache_results = kept, results

    patches.set(jit.JITFunction, "run", launched)
    patches.set(autotuner.Autotuner, "run", tuned)
    patches.set(autotuner.Autotuner, "_bench", _bench)


def _bench(self: Any, *args: Any, **_options: Any) -> tuple[float, ...]:
    """One configuration's time; `args` are the kernel's."""
    del self, args
    torch.empty(CLEARED_BYTES, dtype=torch.int8, device="cuda")
    return ANY_TIME


def _simulated(values: Iterable[Any], simulation: Simulation) -> list[torch.Tensor]:
    return [
        value for value in values if isinstance(value, torch.Tensor) and simulation.memory.of(value) is not None
    ]


def patch_recurrent(patches: Patches, simulation: Simulation) -> None:
    """C++ compares addresses there, which tensors without data do not have."""
    flatten = torch.nn.RNNBase.flatten_parameters
    memory = simulation.memory

    def flattened(self: torch.nn.RNNBase) -> None:
        weights: list[Any] = self._flat_weights
        residents = [memory.of(weight) if isinstance(weight, torch.Tensor) else None for weight in weights]
        is_whole = len(weights) == len(self._flat_weights_names)
        if not is_whole or any(resident is None or resident.device.is_cpu for resident in residents):
            return flatten(self)
        storages = {weight.untyped_storage()._cdata for weight in weights}
        if len({weight.dtype for weight in weights}) > 1 or len(storages) < len(weights):
            return None  # already in one piece, or tied
        with torch.no_grad():
            total = sum(weight.numel() for weight in weights)
            whole = torch.empty(total, dtype=weights[0].dtype, device=weights[0].device)
            offset = 0
            for weight in weights:
                weight.data = whole[offset : offset + weight.numel()].view(weight.size())
                offset += weight.numel()
        return None

    patches.set(torch.nn.RNNBase, "flatten_parameters", flattened)


PADDED: Final = "TransformerEncoder keeps the padding of its batch; nested tensors without it need less"


def patch_nested(patches: Patches, simulation: Simulation) -> None:
    is_aligned = torch._nested_tensor_from_mask_left_aligned

    def asked(tensor: torch.Tensor, mask: torch.Tensor) -> Any:
        if simulation.memory.of(tensor) is None:
            return is_aligned(tensor, mask)
        simulation.assumptions.note(PADDED, simulation.origins.place())
        return False

    patches.set(torch, "_nested_tensor_from_mask_left_aligned", asked)
