"""Stacks: which frames are a user's, what to show of them, and by a table of rules what kind of code they were in.

Frames of C++ have file names such as `??` or `Engine.cpp`; recordings made with `stacks="python"` have none of them.
The innermost frame that a rule names decides: a forward that a closure of the optimizer runs is a forward, an
optimizer that a hook of the backward pass runs is an optimizer. Kinds that say little (`WEAK`) count only where no
other does. What no rule names stays `OTHER`. Names are those of torch 2.1 to 2.13, cleaned of nothing: rules match a
frame's name and the end of its file, and of functions that other libraries could call alike the whole name.
"""

from __future__ import annotations

import re
from array import array
from collections.abc import Iterable, Iterator
from enum import IntEnum
from itertools import pairwise
from typing import Final, NamedTuple

from vramcast.domain.snapshot import Action, Frame, Snapshot, Trace

LIBRARY: Final = re.compile(
    r"(^|/)(site-packages|dist-packages)/|(^|/)lib/python3[.\d]*/|^<frozen |(^|/)torchinductor_|(^|/)torch/"
)
"""Where files lie that no user wrote; what torch.compile generated is no user's either."""

BARE: Final = frozenset({
    ("_call_impl", "module.py"), ("_wrapped_call_impl", "module.py"), ("_apply", "module.py"),
    ("wrapper", "optimizer.py"), ("decorate_context", "_contextlib.py"), ("_fn", "eval_frame.py"),
    ("backward", "_tensor.py"), ("backward", "__init__.py"), ("_engine_run_backward", "graph.py"),
    ("checkpoint", "checkpoint.py"), ("apply", "function.py"), ("einsum", "functional.py"),
    ("einsum", "_backends.py"), ("einsum", "einops.py"), ("linear", "functional.py"),
})
"""Functions of libraries by bare file name: recordings that were cleaned of paths still have these."""

MODULE_CALLS: Final = frozenset({"forward"})
"""Functions that a module runs as: `nn.Module.__call__` calls `forward`."""

LONGEST_NAME: Final = 4000
"""C++ names beyond are shown as they begin [characters]."""

AUTOGRAD_NODE: Final = re.compile(r"torch::autograd::(?:generated::)?(\w+Backward\d*|AccumulateGrad)::")
"""C++ of the backward pass, which has no line of Python: BmmBackward0::apply."""

MOST_SHOWN: Final = 160
"""Of one frame: names of C++ templates can be thousands of characters long [characters]."""


class Place(NamedTuple):
    """What a stack says about where it was."""

    line: str  # of the user's Python nearest to the allocation: "train.py:50 step"; without one the autograd node
    module: str  # the nearest forward: "attention.py:70"; "" outside modules


def is_python(frame: Frame) -> bool:
    """Whether the frame is Python's, not C++."""
    return frame.filename.endswith(".py") or (frame.filename.startswith("<") and frame.filename.endswith(">"))


def is_users(frame: Frame) -> bool:
    """Whether the frame is Python that came with no library, as far as its path says."""
    return (
        is_python(frame)
        and (frame.name, frame.filename) not in BARE
        and LIBRARY.search(frame.filename) is None
    )


def base_name(filename: str) -> str:
    """The last part of a path of either kind.

    >>> base_name("/home/me/train.py"), base_name("C:\\\\me\\\\train.py")
    ('train.py', 'train.py')
    """
    return filename.rsplit("/", 1)[-1].rsplit("\\", 1)[-1]


def shown(frame: Frame) -> str:
    """A frame in one line: "train.py:50 step", "torch::autograd::Engine::thread_main".

    >>> shown(Frame("step", "/home/me/train.py", 50)), shown(Frame("at::empty", "??", 0))
    ('train.py:50 step', 'at::empty')
    """
    if is_python(frame):
        return f"{base_name(frame.filename)}:{frame.line} {frame.name}"[:MOST_SHOWN]
    return bare(frame.name)[:MOST_SHOWN]


def bare(name: str) -> str:
    """A C++ function without its arguments, template arguments and result.

    >>> bare("void at::meta::check<at::meta::bmm>(at::Tensor const&, bool) const")
    'at::meta::check'
    """
    if len(name) > LONGEST_NAME or "operator" in name:
        return name
    depth, kept = 0, []
    for character in name.replace("(anonymous namespace)", "{anonymous}"):
        if character in "<(":
            depth += 1
        elif character in ">)":
            depth = max(0, depth - 1)
        elif not depth:
            kept.append(character)
    words = [word for word in "".join(kept).split() if word not in ("const", "[clone")]
    qualified = [word for word in words if "::" in word]
    return (qualified or words or [name])[-1]


def place_of(stack: Iterable[Frame]) -> Place:
    """The user's line and the module of a stack, innermost frame first."""
    line = module = node = ""
    for frame in stack:
        if not is_python(frame):
            found = None if node else AUTOGRAD_NODE.search(frame.name)
            node = found[1] if found else node
            continue
        if not module and frame.name in MODULE_CALLS:
            module = f"{base_name(frame.filename)}:{frame.line}"
        if not line and is_users(frame):
            line = shown(frame)
        if line and module:
            break
    return Place(line or node, module)


def python_frames(stack: Iterable[Frame]) -> Iterator[Frame]:
    """The frames of Python, the calls between modules left out."""
    return (frame for frame in stack if is_python(frame) and (frame.name, base_name(frame.filename)) not in BARE)


def top_frames(stack: tuple[Frame, ...], most: int) -> tuple[str, ...]:
    """The frames that tell most: of Python where there are any, else of C++ below the allocator."""
    python = [shown(frame) for frame in python_frames(stack)]
    return tuple((python or [shown(frame) for frame in stack if not PLUMBING.search(frame.name)])[:most])


PLUMBING: Final = re.compile(
    r"^torch::unwind|CapturedTraceback|gather_with_cpp|CUDACachingAllocator|^at::detail::empty|empty_generic"
    r"|^c10::impl::wrap_kernel|create_out|set_output_raw|TensorIteratorBase|wrapper_CUDA|^at::native::empty|^at::_ops::"
    r"|^_?Py|^clone$|^_start$|libc_start|pthread|native_thread|torch::autograd::(python::)?(Python)?Engine|Node::operator"
)
"""C++ that every allocation has: the recorder, the allocator, dispatch and the interpreter."""


class Kind(IntEnum):
    """Kinds of code."""

    WORKSPACE = 0  # scratch memory of a library
    ACCUMULATED = 1  # a gradient of a parameter
    OPTIMIZER_STATE = 2  # created for the optimizer to keep
    CACHE = 3  # keys and values of attention
    WEIGHT = 4  # a parameter made, moved, loaded or gathered
    ZERO_GRAD = 5  # gradients given up
    CLIPPING = 6  # norms of gradients
    STEP = 7  # within an optimizer step
    RECOMPUTED = 8  # a forward within the backward pass
    BACKWARD = 9  # the autograd engine
    FORWARD = 10  # a module's forward
    BUFFER = 11  # what an engine keeps to put inputs into
    FUNCTION = 12  # a loss or another function of networks outside any module
    INPUT = 13  # moved to the device outside any module
    OTHER = 14  # frames, but none that a rule names
    UNSEEN = 15  # no frames


WEAK: Final = frozenset({Kind.FUNCTION, Kind.INPUT, Kind.OTHER})
"""Kinds that any other in the stack goes before."""


class Rule(NamedTuple):
    """A frame whose name and file match says `kind`."""

    kind: Kind
    name: str  # regular expression, anywhere in the name
    file: str = ""  # regular expression, anywhere in the file; "" any


OPTIMIZER_FILE: Final = (
    r"(^|/)(\w+_)?(optim|optims|optimizers?|\w*adam\w*|sgd|lion|muon|shampoo|soap|lamb|lars|adafactor|rmsprop|adagrad|lbfgs)"
    r"(_\w+)?(/\w+)*\.py$"
)
"""Files of optimizers, or in a folder of them: their words stand alone, as in `torch/optim/adamw.py`."""

RULES: Final[tuple[Rule, ...]] = (
    # cuBLAS and cuBLASLt: at::cuda [pytorch aten/src/ATen/cuda/CublasHandlePool.cpp]; 2.11 sets it in another function
    Rule(Kind.WORKSPACE, r"getNewWorkspace|setWorkspaceForHandle|getCUDABlasLtWorkspace"),
    # cuDNN convolutions: struct Workspace [pytorch aten/src/ATen/native/cudnn/Conv_v7.cpp]
    Rule(Kind.WORKSPACE, r"Workspace::Workspace\("),
    # FlashInfer's, as vLLM and SGLang keep it [vllm v1/attention/backends/flashinfer.py]
    Rule(Kind.WORKSPACE, r"^_get_workspace_buffer$"),
    # the leaf of the autograd graph: what it allocates becomes .grad [pytorch autograd/functions/accumulate_grad.h]
    Rule(Kind.ACCUMULATED, r"torch::autograd::AccumulateGrad"),
    # DDP's buckets hold gradients all the run long [pytorch distributed/c10d/reducer.cpp]
    Rule(Kind.ACCUMULATED, r"c10d::Reducer::"),
    # FSDP2 and FSDP1 reduce gradients into memory of their own
    Rule(Kind.ACCUMULATED, r"^foreach_reduce$", r"_fsdp_collectives\.py$"),
    Rule(Kind.ACCUMULATED, r"^_reduce_grad$", r"_runtime_utils\.py$"),
    # every optimizer of torch.optim makes its states here, others in a loaded state dict
    Rule(Kind.OPTIMIZER_STATE, r"^_init_group$"),
    Rule(Kind.OPTIMIZER_STATE, r"^_?init_state$", OPTIMIZER_FILE),
    Rule(Kind.OPTIMIZER_STATE, r"^__init__$", OPTIMIZER_FILE),
    Rule(Kind.OPTIMIZER_STATE, r"load_state_dict|_process_value_according_to_param_policy", r"optimizer\.py$"),
    # transformers' caches
    Rule(Kind.CACHE, r"", r"(^|/)cache_utils\.py$"),
    # vLLM's pool [vllm v1/worker/gpu_model_runner.py, v1/worker/gpu/attn_utils.py, before v1 worker/cache_engine.py]:
    # EngineCore._initialize_kv_caches, in which the profiling run and the capture of graphs happen, is not it
    Rule(Kind.CACHE, r"^_allocate_kv_cache(_tensors)?$", r"\.py$"),
    # SGLang's pools [sglang srt/mem_cache/*memory_pool.py]
    Rule(Kind.CACHE, r"^_create_(\w+_)?buffers$|^__init__$", r"(^|/)\w*memory_pool\w*\.py$"),
    # buffers for inputs of vLLM and SGLang, made once [vllm v1/worker/gpu_input_batch.py, v1/utils.py CpuGpuBuffer]
    Rule(Kind.BUFFER, r"^__init__$|^_make_buffer$", r"(^|/)(gpu/|gpu_)?(input_batch|block_table|buffer_utils)\.py$"),
    Rule(Kind.BUFFER, r"^__init__$|^_make_buffer$", r"(^|/)\w*(model|cuda_graph)_runner\.py$"),
    # nn.Module.to/.cuda/.half go through _apply
    Rule(Kind.WEIGHT, r"^_apply$|^to_empty$|^_load_from_state_dict$", r"(^|/)module\.py$"),
    Rule(Kind.WEIGHT, r"^reset_parameters$|^create_weights$|^from_pretrained$|^_load_pretrained_model$"),
    Rule(Kind.WEIGHT, r"^__init__$", r"torch/nn/modules/\w+\.py$"),
    # FSDP gathers whole weights before a layer runs
    Rule(Kind.WEIGHT, r"^foreach_all_gather$|^init_unsharded_param$|^alloc_all_gather_outputs$", r"_fsdp_\w+\.py$"),
    Rule(Kind.WEIGHT, r"^_alloc_padded_unsharded_flat_param$|^_unshard$", r"_flat_param\.py$|_runtime_utils\.py$"),
    Rule(Kind.ZERO_GRAD, r"^zero_grad$|^Optimizer\.zero_grad#"),
    Rule(Kind.CLIPPING, r"^clip_grad_norm_$|^_get_total_norm$|^clip_grad_value_$|^_clip_grads_with_norm_$"),
    # torch wraps every optimizer's step, a user's too, and marks it in a profile [pytorch torch/optim/optimizer.py,
    # profile_hook_step]
    Rule(Kind.STEP, r"^(\w+\.)*wrapper$|^_use_grad$", r"(^|/)optimizer\.py$"),
    Rule(Kind.STEP, r"^Optimizer\.step#"),
    Rule(Kind.STEP, r"^_(single|multi)_tensor_\w+$|^_fused_\w+$", r"\.py$"),
    Rule(Kind.STEP, r"^step$", OPTIMIZER_FILE),
    # the engine: of C++; as a profile names what it runs; as Python calls it and is called by it. Its own thread has no
    # frames of Python below what it calls [pytorch torch/utils/checkpoint.py, unpack_hook]
    Rule(Kind.BACKWARD, r"torch::autograd::(python::)?(Python)?Engine::|^autograd::engine::evaluate_function"),
    Rule(Kind.BACKWARD, r"^_engine_run_backward$"),
    Rule(Kind.BACKWARD, r"^backward$|^_make_grads$", r"(^|/)(_tensor|checkpoint|autograd/__init__)\.py$"),
    Rule(Kind.BACKWARD, r"^unpack_hook\w*$|^recompute_fn$", r"(^|/)checkpoint\.py$"),
    Rule(Kind.FORWARD, r"^forward$", r"\.py$|^<"),
    Rule(Kind.FORWARD, r"^_call_impl$", r"(^|/)module\.py$"),
    Rule(Kind.FORWARD, r"^nn\.Module: "),  # as a profile names a module's call
    # losses and what else networks are made of, called outside a module
    Rule(Kind.FUNCTION, r"", r"torch/nn/functional\.py$"),
    Rule(Kind.FUNCTION, r"^(\w+_)?loss(_\w+)?$|^cross_entropy(_\w+)?$|^criterion$"),
    # tensor.to and tensor.cuda called from Python; helpers of Accelerate, Trainer and Lightning
    Rule(Kind.INPUT, r"torch::autograd::THPVariable_(to|cuda)\("),
    Rule(Kind.INPUT, r"^send_to_device$|^_prepare_input$|^move_data_to_device$|^pin_memory$", r"\.py$"),
)
"""The whole table; a frame is of the kind of the first rule that it matches."""

PASSING: Final = frozenset({
    "_call_impl", "_wrapped_call_impl", "decorate_context", "wrapper", "_use_grad", "inner", "__torch_function__",
})
"""Functions that stand between a caller and what it calls, and say nothing of either."""

CONSTRUCTORS: Final = frozenset({"__init__", "<listcomp>", "<genexpr>", "<dictcomp>"})
"""Code of a module that is being built: of its own lines and of lists of layers."""

GENERATED: Final = re.compile(r"(^|/)c[a-z2-7]{51}\.py$")
"""Code of Inductor. Its frames are followed by the lines that it was made of, as if those had called it [pytorch
torch/csrc/profiler/python/combined_traceback.cpp, stack_frames_for_code]."""

RUNS_GENERATED: Final = re.compile(
    r"(^|/)(utils|output_code|cudagraph_trees|compile_fx|codecache|runtime_wrappers|benchmarking|graph)\.py$"
)
"""Files of torch that call generated code."""

_PATTERNS: Final = tuple(
    (rule.kind, re.compile(rule.name), re.compile(rule.file) if rule.file else None) for rule in RULES
)

Closures = frozenset[tuple[str, str]]
"""(name, file) of functions that an optimizer's step calls and that run modules or the engine."""


class Kinds:
    """Kinds of stacks; frames repeat, so what each says is looked up once."""

    def __init__(self, snapshot: Snapshot) -> None:
        """Of the stacks of a recording."""
        self._stacks = snapshot.stacks
        self._of_frame: dict[Frame, Kind] = {}
        self._of_stack: dict[int, Kind] = {}
        self._closures: Closures = frozenset(
            found for stack in snapshot.stacks if any(self._frame(frame) in IN_STEP for frame in stack)
            for found in _closures(self._frames(stack))
        )
        self._threads = any(map(_is_python, snapshot.stacks)) and not any(map(_has_cpp, snapshot.stacks))

    def __getitem__(self, stack: int) -> Kind:
        """The kind of the stack with this index; an index of no stack has no frames."""
        kind = self._of_stack.get(stack)
        if kind is None:
            frames = self._stacks[stack] if 0 <= stack < len(self._stacks) else ()
            kind = self._of_stack[stack] = self._kind(frames)
        return kind

    def of_events(self, trace: Trace) -> array[int]:
        """"B", the kind of the code of each event.

        Where frames of Python alone were recorded, an event without any is of a thread that runs none: the autograd
        engine's. Frames of frees may be missing altogether (`context="alloc"`).
        """
        kinds = array("B", (self[stack] for stack in trace.stacks))
        if not self._threads:
            return kinds
        for actions in ((Action.ALLOC,), (Action.FREE_REQUESTED, Action.FREE_COMPLETED)):
            events = [index for index, action in enumerate(trace.actions) if action in actions]
            if any(kinds[index] != Kind.UNSEEN for index in events):
                for index in events:
                    if kinds[index] == Kind.UNSEEN:
                        kinds[index] = Kind.BACKWARD
        return kinds

    def _kind(self, stack: tuple[Frame, ...]) -> Kind:
        if not stack:
            return Kind.UNSEEN
        frames = self._frames(stack)
        for index, (_, kind) in enumerate(frames):
            if kind in WEAK or (kind in IN_STEP and self._is_in_closure(frames[:index])):
                continue
            if kind == Kind.FORWARD and any(outer in BACKWARDS for _, outer in frames[index:]):
                return Kind.RECOMPUTED  # checkpointing runs modules inside the engine
            return kind
        if _is_construction([frame for frame, _ in frames]):
            return Kind.WEIGHT
        return next((kind for _, kind in frames if kind in WEAK and kind != Kind.OTHER), Kind.OTHER)

    def _is_in_closure(self, inner: list[tuple[Frame, Kind]]) -> bool:
        return any((frame.name, frame.filename) in self._closures for frame, _ in inner)

    def _frames(self, stack: tuple[Frame, ...]) -> list[tuple[Frame, Kind]]:
        """The frames with their kinds, innermost first, but for those that only say what generated code is made of."""
        called = list(_called(stack))
        kinds = [self._frame(frame) for frame in called]
        for index, (frame, caller) in enumerate(pairwise(called)):
            if frame.name == "backward" and caller.name == "apply" and caller.filename.endswith("function.py"):
                kinds[index] = Kind.BACKWARD  # of an autograd function, which the engine's thread calls
            if frame.name == "step" and _caller(kinds, called, index) == Kind.STEP:
                kinds[index] = Kind.STEP  # of an optimizer of the user's own
        return list(zip(called, kinds, strict=True))

    def _frame(self, frame: Frame) -> Kind:
        kind = self._of_frame.get(frame)
        if kind is None:
            kind = self._of_frame[frame] = next(
                (
                    kind for kind, name, file in _PATTERNS
                    if name.search(frame.name) and (file is None or file.search(frame.filename))
                ),
                Kind.OTHER,
            )
        return kind


CLOSURE_NAMES: Final = frozenset({"closure", "<lambda>"})
TORCH: Final = re.compile(r"(^|/)torch/")
IN_STEP: Final = frozenset({Kind.STEP, Kind.OPTIMIZER_STATE})
BACKWARDS: Final = frozenset({Kind.BACKWARD, Kind.ACCUMULATED})


def _called(stack: tuple[Frame, ...]) -> Iterator[Frame]:
    """The frames without the origins of generated code."""
    origins = False
    for frame in stack:
        origins = origins and frame.filename.endswith(".py") and not RUNS_GENERATED.search(frame.filename)
        if not origins:
            yield frame
        origins = origins or GENERATED.search(frame.filename) is not None


def _caller(kinds: list[Kind], frames: list[Frame], index: int) -> Kind:
    """The kind of what called a frame, past code that only passes on."""
    for outer in range(index + 1, len(frames)):
        if kinds[outer] != Kind.OTHER or frames[outer].name not in PASSING:
            return kinds[outer]
    return Kind.OTHER


def _closures(frames: list[tuple[Frame, Kind]]) -> Iterator[tuple[str, str]]:
    """What the innermost step of a stack calls, if that runs a module or the engine: no optimizer's own code does."""
    step = next((index for index, (_, kind) in enumerate(frames) if kind in IN_STEP), 0)
    inner = frames[:step]
    if any(kind in (Kind.FORWARD, Kind.BACKWARD) for _, kind in inner):
        own = frames[step][0].filename  # other functions there help the step
        callees = [
            frame for frame, _ in inner
            if _is_users_python(frame) and (frame.filename != own or frame.name in CLOSURE_NAMES)
        ]
        yield from ((frame.name, frame.filename) for frame in callees[-1:])


def _is_construction(frames: list[Frame]) -> bool:
    """Whether a module within a module is being built: constructors that call each other, nothing else between."""
    python = [frame for frame in frames if _is_users_python(frame)]
    depth = 0
    for frame in python:
        if frame.name not in CONSTRUCTORS:
            break
        depth += frame.name == "__init__"
    return depth >= NESTED


NESTED: Final = 2
"""Constructors within each other from which a stack is that of a module being built [count]."""


def _is_users_python(frame: Frame) -> bool:
    """Python that is none of torch's functions which make tensors."""
    return frame.filename.endswith(".py") and not TORCH.search(frame.filename) and frame.name not in PASSING


def _is_python(stack: tuple[Frame, ...]) -> bool:
    return any(frame.filename.endswith(".py") for frame in stack)


def _has_cpp(stack: tuple[Frame, ...]) -> bool:
    """Whether frames of C++ were recorded: their files are none of Python's, or unknown."""
    return any(not frame.filename.endswith(".py") and not frame.filename.startswith("<") for frame in stack)
