"""Entering and leaving a simulation: devices, dispatch mode, patches, composites, autocast, hooks.

Autocast as on the simulated device: torch's own switch, its lists of operators, its cache of cast weights.

C++ casts only tensors that are on the device, which simulated ones are not; so the kernels at the device's autocast
key are replaced while a simulation is active. torch's switch works by excluding that key.
[lists] pytorch aten/src/ATen/autocast_mode.cpp and .h: AT_FORALL_LOWER_PRECISION_FP, AT_FORALL_FP32,
AT_FORALL_FP32_SET_OPT_DTYPE, AT_FORALL_DIFFERENT_REDISPATCH_SIGNATURE, AT_FORALL_PROMOTE
[recurrent] pytorch aten/src/ATen/cudnn/AutocastRNN.cpp
[autocast] pytorch aten/src/ATen/autocast_mode.cpp and .h: cached_cast, is_autocast_eligible
"""

from __future__ import annotations

import gc
import warnings
import weakref
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from functools import wraps
from pathlib import Path
from tempfile import TemporaryDirectory
from threading import Lock
from typing import Any, Final

import torch
from torch._subclasses import FakeTensor
from torch._subclasses.functional_tensor import FunctionalTensor
from torch.optim.optimizer import register_optimizer_step_post_hook, register_optimizer_step_pre_hook

from vramcast.allocator import Settings
from vramcast.domain.device import Gpu
from vramcast.errors import Unsupported
from vramcast.question.tracing import Value
from vramcast.tracing.composites import Composites
from vramcast.tracing.distributed import collectives
from vramcast.tracing.distributed.groups import ALONE, World, simulate_distributed
from vramcast.tracing.environment import patch_environment
from vramcast.tracing.environment.overlay import Overlay
from vramcast.tracing.environment.patches import Patches, variables
from vramcast.tracing.extensions import EXTENSIONS, GUARDED, LIBRARIES
from vramcast.tracing.extensions.stand_ins import patch_loading, standing_in
from vramcast.tracing.holders import Holders
from vramcast.tracing.memory import Device, Memory
from vramcast.tracing.operators import all_tensors
from vramcast.tracing.origins import Assumptions, Origins
from vramcast.tracing.rules import PLAIN, RULES
from vramcast.tracing.simulation import Simulation

Kernel = Callable[[Any, Any, dict[str, Any]], Any]
DEVICE: Final = "cuda"
KEY: Final = "AutocastCUDA"  # of torch's dispatcher
LOWER_PRECISION: Final = (
    "_convolution.deprecated", "_convolution", "conv1d", "conv1d.padding", "conv2d", "conv2d.padding", "conv3d",
    "conv3d.padding", "conv_tbc", "conv_transpose1d", "conv_transpose2d.input", "conv_transpose3d.input",
    "convolution", "prelu", "addmm", "addmv", "addr", "matmul", "einsum", "mm", "mv", "linalg_vecdot", "linear",
    "addbmm", "baddbmm", "bmm", "chain_matmul", "linalg_multi_dot", "_thnn_fused_lstm_cell",
    "_thnn_fused_gru_cell", "lstm_cell", "gru_cell", "rnn_tanh_cell", "rnn_relu_cell",
    "_scaled_dot_product_flash_attention", "scaled_dot_product_attention", "cudnn_convolution",
    "cudnn_convolution_transpose",
)
FP32: Final = (
    "acos", "asin", "cosh", "erfinv", "exp", "expm1", "log", "log10", "log2", "log1p", "reciprocal", "rsqrt",
    "sinh", "tan", "pow.Tensor_Scalar", "pow.Tensor_Tensor", "pow.Scalar", "softplus", "layer_norm",
    "native_layer_norm", "group_norm", "rms_norm", "frobenius_norm.dim", "nuclear_norm", "nuclear_norm.dim",
    "cosine_similarity", "poisson_nll_loss", "cosine_embedding_loss", "nll_loss", "nll_loss2d",
    "hinge_embedding_loss", "kl_div", "l1_loss", "smooth_l1_loss", "huber_loss", "mse_loss",
    "margin_ranking_loss", "multilabel_margin_loss", "soft_margin_loss", "triplet_margin_loss",
    "multi_margin_loss", "binary_cross_entropy_with_logits", "dist", "pdist", "cdist", "renorm", "logsumexp",
    "upsample_nearest1d", "_upsample_nearest_exact1d", "upsample_nearest2d", "_upsample_nearest_exact2d",
    "upsample_nearest3d", "_upsample_nearest_exact3d", "upsample_linear1d", "upsample_bilinear2d",
    "_upsample_bilinear2d_aa", "upsample_trilinear3d", "upsample_bicubic2d", "_upsample_bicubic2d_aa",
)
PROMOTED: Final = (
    "addcdiv", "addcmul", "atan2", "bilinear", "cross", "dot", "vdot", "grid_sampler", "index_put", "tensordot",
    "scatter_add",
)
"""To the widest type among the operands."""
FP32_RESULT: Final = (
    "prod", "prod.dim_int", "softmax.int", "log_softmax.int", "cumprod", "cumsum", "linalg_vector_norm",
    "linalg_matrix_norm", "linalg_matrix_norm.str_ord", "sum", "sum.dim_IntList",
)
"""Computed in fp32 through their dtype argument, where the caller gave none."""
FP32_APPENDED: Final = ("norm.Scalar", "norm.ScalarOpt_dim")
"""The same, the argument being the last of another overload."""
RECURRENT: Final = ("_cudnn_rnn",)
"""Always in fp16, whatever type autocast is set to [recurrent]."""


class Autocast:
    """Casts of one simulation."""

    def __init__(self, memory: Memory) -> None:
        self._memory = memory
        self._key = getattr(torch._C.DispatchKey, KEY)
        self._casts: dict[int, tuple[weakref.ref[torch.Tensor], torch.Tensor]] = {}

    def start(self, patches: Patches) -> torch.library.Library:
        """Register the kernels; they are gone when the library returned is destroyed."""
        library = torch.library.Library("aten", "IMPL", KEY)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            for names, kernel in (
                (LOWER_PRECISION, self._to(lambda: torch.get_autocast_dtype(DEVICE))),
                (FP32, self._to(lambda: torch.float32)), (FP32_RESULT, self._fp32_result),
                (FP32_APPENDED, self._fp32_appended), (PROMOTED, self._promoted), (RECURRENT, self._recurrent),
            ):
                for name in names:
                    self._register(library, name, kernel)
        torch._C._dispatch_tls_set_dispatch_key_included(self._key, True)
        clear = torch.clear_autocast_cache

        def clear_both() -> None:
            self._casts.clear()
            clear()

        patches.set(torch, "clear_autocast_cache", clear_both)
        return library

    def stop(self, library: torch.library.Library) -> None:
        """Undo `start`."""
        torch._C._dispatch_tls_set_dispatch_key_included(self._key, False)
        library._destroy()
        self._casts.clear()

    def _register(self, library: Any, name: str, kernel: Kernel) -> None:
        packet, _, overload = name.partition(".")
        op = getattr(getattr(torch.ops.aten, packet, None), overload or "default", None)
        if op is None:
            return  # of another version of torch
        keys = torch._C.DispatchKeySet(self._key)

        def cast_and_call(*args: Any, **kwargs: Any) -> Any:
            with torch._C._ExcludeDispatchKeyGuard(keys):
                return kernel(op, args, kwargs)

        library.impl(name, cast_and_call, allow_override=True)

    def _to(self, wanted: Callable[[], torch.dtype]) -> Kernel:
        def cast_all(op: Any, args: Any, kwargs: dict[str, Any]) -> Any:
            dtype = wanted()
            return op(*(self._cast(arg, dtype) for arg in args), **{k: self._cast(v, dtype) for k, v in kwargs.items()})

        return cast_all

    def _fp32_result(self, op: Any, args: Any, kwargs: dict[str, Any]) -> Any:
        names_dtype = kwargs.get("dtype") is not None or any(isinstance(arg, torch.dtype) for arg in args)
        if self._is_eligible(args[0]) and not names_dtype:
            return op(*args, **{**kwargs, "dtype": torch.float32})
        return op(*args, **kwargs)

    def _fp32_appended(self, op: Any, args: Any, kwargs: dict[str, Any]) -> Any:
        if not self._is_eligible(args[0]):
            return op(*args, **kwargs)
        return torch.ops.aten.norm(*args, *kwargs.values(), dtype=torch.float32)

    def _promoted(self, op: Any, args: Any, kwargs: dict[str, Any]) -> Any:
        widest = torch.get_autocast_dtype(DEVICE)
        for arg in all_tensors(args):
            if self._is_eligible(arg) and arg.dtype is torch.float32:
                widest = torch.float32
        return op(*(self._cast(arg, widest) for arg in args), **kwargs)

    def _recurrent(self, op: Any, args: Any, kwargs: dict[str, Any]) -> Any:
        """Weights go into one new piece of memory every time; there is no cache of it [recurrent]."""
        x, weights, per_layer, buffer, hx, cx, *rest = args
        first = weights[0] if buffer is None else buffer
        if self._is_eligible(first) and first.dtype is not torch.float16:
            buffer, weights = _flattened(weights)
        states = (self._cast(state, torch.float16) for state in (hx, cx))
        return op(self._cast(x, torch.float16), weights, per_layer, buffer, *states, *rest, **kwargs)

    def _is_eligible(self, tensor: torch.Tensor) -> bool:
        if not tensor.is_floating_point() or tensor.dtype is torch.float64:
            return False
        resident = self._memory.of(tensor)
        if resident is None:  # torch's compiler works with tensors of its own
            return isinstance(tensor, (FakeTensor, FunctionalTensor)) and tensor.device.type in (DEVICE, "meta")
        return resident.device.torch_device.type == DEVICE

    def _cast(self, arg: Any, dtype: torch.dtype) -> Any:
        if isinstance(arg, torch.Tensor):
            return self._cached_cast(arg, dtype)
        if isinstance(arg, (list, tuple)) and arg and isinstance(arg[0], torch.Tensor):
            return [self._cached_cast(part, dtype) for part in arg]
        return arg

    def _cached_cast(self, tensor: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
        if tensor.dtype is dtype or not self._is_eligible(tensor):
            return tensor
        is_weight = (
            dtype is torch.get_autocast_dtype(DEVICE) and tensor.dtype is torch.float32 and tensor.requires_grad
            and tensor.is_leaf and not tensor._is_view() and torch.is_autocast_cache_enabled()
        )
        if not is_weight:
            return tensor.to(dtype)
        kept = self._casts.get(id(tensor))
        if kept is None or kept[0]() is not tensor:
            kept = self._casts[id(tensor)] = weakref.ref(tensor), tensor.to(dtype)
        return kept[1]


def _flattened(weights: list[torch.Tensor]) -> tuple[torch.Tensor, list[torch.Tensor]]:
    """Copies in fp16 that share a storage, as tensors of their own for autograd.

    [flat] pytorch aten/src/ATen/native/cudnn/RNN.cpp `copy_weights_to_flat_buf_views`
    """
    total = sum(weight.numel() for weight in weights)
    whole = torch.zeros(total, dtype=torch.float16, device=weights[0].device)
    parts, offset = [], 0
    for weight in weights:
        part = torch.as_strided(whole.detach(), weight.size(), weight.stride(), offset).detach()
        parts.append(part.copy_(weight))
        offset += weight.numel()
    return whole, parts


COMPILER_FOLDER: Final = "TORCHINDUCTOR_CACHE_DIR"  # that torch's compiler sets as soon as it is imported
_TURN: Final = Lock()
"""Held while a simulation runs: it replaces parts of torch for the whole process."""


class Session:
    """One simulated process: what it ran on and what it did."""

    def __init__(
        self, gpu: Gpu, *, num_devices: int = 1, settings: Settings | None = None,
        capacity_bytes: int | None = None, values: Mapping[str, Value] | None = None, sandbox: bool = False,
        world: World = ALONE,
    ) -> None:
        """Nothing has run yet.

        Args:
            num_devices: cards the process sees, at least those of the world's ranks on its machine
            capacity_bytes: of each card; None: without end, so that what the run needs is known [bytes]
            values: place ("train.py:33") -> what tensors that are read there hold
            sandbox: keep out all files that the run writes
        """
        self.gpu, self.world, self._sandbox = gpu, world, sandbox
        self.origins = origins = Origins()
        host = Device(torch.device("cpu"), origins=origins)
        cards = tuple(
            Device(
                torch.device("cuda", index), origins=origins, gpu=gpu, settings=settings, capacity_bytes=capacity_bytes
            )
            for index in range(max(num_devices, world.local_size))
        )
        self.memory = Memory(cards, host)
        assumptions = Assumptions(values)
        self.holders = Holders(self.memory, origins, assumptions)
        self.simulation = Simulation(
            self.memory, origins, rules={**RULES, **collectives.RULES},
            plain=PLAIN | collectives.PLAIN, assumptions=assumptions,
        )

    @property
    def device(self) -> Device:
        return self.memory.devices[self.world.local_rank]

    @property
    def fullest(self) -> Device:
        """The card that needed most."""
        return max(self.memory.devices, key=lambda each: each.allocator.peak_allocated_bytes)

    @property
    def assumptions(self) -> Assumptions:
        return self.simulation.assumptions

    def keep_files_out(self) -> None:
        """What is written from now on."""
        self.overlay.keeps_everything = True

    @contextmanager
    def active(self, files: Path | None = None) -> Iterator[Session]:
        """Within: torch runs on the simulated devices. Everything is put back on the way out.

        Files that are kept out go to a folder, by default to one that is removed at the end.

        Raises: Unsupported where another simulation runs
        """
        with ExitStack() as stack:
            stack.enter_context(_alone())
            stack.enter_context(variables({COMPILER_FOLDER: None}))
            import torch._dynamo  # noqa: F401 (its tables must know torch's own classes, not those put in their place)

            folder = files or Path(stack.enter_context(TemporaryDirectory(prefix="vramcast-")))
            patches = stack.enter_context(Patches())
            autocast = Autocast(self.memory)
            library = autocast.start(patches)
            stack.callback(autocast.stop, library)
            composites = Composites(self.simulation)
            composites.start()
            stack.callback(composites.stop)
            self.simulation.suspended = composites.suspended
            self.simulation.folder = folder
            self.overlay = Overlay(folder, keeps_everything=self._sandbox)
            self.simulation.led = self.overlay.for_opening
            patch_environment(patches, self.simulation, self.overlay)
            patch_loading(patches, self.simulation)
            stack.enter_context(simulate_distributed(patches, self.simulation, self.world))
            stack.enter_context(standing_in(patches, self.simulation, EXTENSIONS, GUARDED, LIBRARIES))
            _follow_backward(patches, self.holders)
            for handle in _hooks(self.origins, self.holders):
                stack.callback(handle.remove)
            stack.enter_context(self.simulation)
            stack.enter_context(_older_left_alone())
            yield self


@contextmanager
def _alone() -> Iterator[None]:
    """Within: no other simulation starts, in this thread or another."""
    if not _TURN.acquire(blocking=False):
        raise Unsupported(
            "a simulation is running already, and a process runs one at a time; leave its block first, or start "
            "another process"
        )
    try:
        yield
    finally:
        _TURN.release()


@contextmanager
def _older_left_alone() -> Iterator[None]:
    """Within: the search for cycles passes over what is there by now, above all torch: it took a fifth of a step.

    Simulated tensors come later, so that cycles which hold them are found as ever.
    """
    if gc.get_freeze_count():  # somebody else's choice
        yield
        return
    gc.freeze()
    try:
        yield
    finally:
        gc.unfreeze()


def _follow_backward(patches: Patches, holders: Holders) -> None:
    backward = torch.autograd.backward

    @wraps(backward)
    def followed(*args: Any, **kwargs: Any) -> None:
        backward(*args, **kwargs)
        holders.after_backward()

    patches.set(torch.autograd, "backward", followed)


def _hooks(origins: Origins, holders: Holders) -> Iterator[Any]:
    modules = torch.nn.modules.module
    yield modules.register_module_forward_pre_hook(holders.enter_root)
    yield modules.register_module_forward_pre_hook(origins.enter)
    yield modules.register_module_forward_hook(origins.leave, always_call=True)
    yield register_optimizer_step_pre_hook(holders.before_step)
    yield register_optimizer_step_post_hook(holders.after_step)
