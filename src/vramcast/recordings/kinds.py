"""What kind of code a stack was in: a table of rules, each a frame that names the kind.

A stack is of the first kind in the table that any of its frames matches. What no rule names stays `OTHER`.
Names are those of torch 2.1 to 2.13, cleaned of nothing: rules match a frame's name and the end of its file.
"""

from __future__ import annotations

import re
from enum import IntEnum
from typing import Final, NamedTuple

from vramcast.domain.snapshot import Frame


class Kind(IntEnum):
    """Kinds of code, the most telling first."""

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
    INPUT = 11  # moved to the device outside any module
    OTHER = 12  # frames, but none that a rule names
    UNSEEN = 13  # no frames


class Rule(NamedTuple):
    """A frame whose name and file match says `kind`."""

    kind: Kind
    name: str  # regular expression, anywhere in the name
    file: str = ""  # regular expression, anywhere in the file; "" any


RULES: Final[tuple[Rule, ...]] = (
    # cuBLAS and cuBLASLt: at::cuda [pytorch aten/src/ATen/cuda/CublasHandlePool.cpp]; 2.11 sets it in another function
    Rule(Kind.WORKSPACE, r"getNewWorkspace|setWorkspaceForHandle|getCUDABlasLtWorkspace"),
    # cuDNN convolutions: struct Workspace [pytorch aten/src/ATen/native/cudnn/Conv_v7.cpp]
    Rule(Kind.WORKSPACE, r"Workspace::Workspace\("),
    # the leaf of the autograd graph: what it allocates becomes .grad [pytorch autograd/functions/accumulate_grad.h]
    Rule(Kind.ACCUMULATED, r"torch::autograd::AccumulateGrad"),
    # DDP's buckets hold gradients all the run long [pytorch distributed/c10d/reducer.cpp]
    Rule(Kind.ACCUMULATED, r"c10d::Reducer::"),
    # FSDP2 and FSDP1 reduce gradients into memory of their own
    Rule(Kind.ACCUMULATED, r"^foreach_reduce$", r"_fsdp_collectives\.py$"),
    Rule(Kind.ACCUMULATED, r"^_reduce_grad$", r"_runtime_utils\.py$"),
    # every optimizer of torch.optim makes its states here, others in a loaded state dict
    Rule(Kind.OPTIMIZER_STATE, r"^_init_group$|^init_state$|^_init_state$"),
    Rule(Kind.OPTIMIZER_STATE, r"^__init__$", r"(^|/)\w*(optim|adam|sgd|lion|muon)\w*(/\w+)?\.py$"),
    Rule(Kind.OPTIMIZER_STATE, r"load_state_dict|_process_value_according_to_param_policy", r"optimizer\.py$"),
    # transformers' caches; vLLM's and SGLang's pools
    Rule(Kind.CACHE, r"", r"(^|/)cache_utils\.py$"),
    Rule(Kind.CACHE, r"_allocate_kv_cache|initialize_kv_cache|_create_kv_buffers|_create_buffers", r"\.py$"),
    # nn.Module.to/.cuda/.half go through _apply
    Rule(Kind.WEIGHT, r"^_apply$|^to_empty$|^_load_from_state_dict$", r"(^|/)module\.py$"),
    Rule(Kind.WEIGHT, r"^reset_parameters$|^create_weights$|^from_pretrained$|^_load_pretrained_model$"),
    Rule(Kind.WEIGHT, r"^__init__$", r"torch/nn/modules/\w+\.py$"),
    # FSDP gathers whole weights before a layer runs
    Rule(Kind.WEIGHT, r"^foreach_all_gather$|^init_unsharded_param$|^alloc_all_gather_outputs$", r"_fsdp_\w+\.py$"),
    Rule(Kind.WEIGHT, r"_alloc_padded_unsharded_flat_param|^_unshard$", r"_flat_param\.py$|_runtime_utils\.py$"),
    Rule(Kind.ZERO_GRAD, r"^zero_grad$"),
    Rule(Kind.CLIPPING, r"^clip_grad_norm_$|^_get_total_norm$|^clip_grad_value_$|^_clip_grads_with_norm_$"),
    # torch wraps every optimizer's step, a user's too [pytorch torch/optim/optimizer.py, profile_hook_step]
    Rule(Kind.STEP, r"^(\w+\.)*wrapper$|^_use_grad$", r"(^|/)optimizer\.py$"),
    Rule(Kind.STEP, r"^_(single|multi)_tensor_\w+$|^_fused_\w+$", r"\.py$"),
    Rule(Kind.STEP, r"^step$", r"(optim|adam|sgd|lion|muon|shampoo|lamb|lars|adafactor|rmsprop)\w*(/\w+)?\.py$"),
    Rule(Kind.BACKWARD, r"torch::autograd::(python::)?(Python)?Engine::|^_engine_run_backward$"),
    Rule(Kind.FORWARD, r"^forward$", r"\.py$|^<"),
    Rule(Kind.FORWARD, r"^_call_impl$", r"(^|/)module\.py$"),
    # tensor.to and tensor.cuda called from Python; helpers of Accelerate, Trainer and Lightning
    Rule(Kind.INPUT, r"torch::autograd::THPVariable_(to|cuda)\("),
    Rule(Kind.INPUT, r"^send_to_device$|^_prepare_input$|^move_data_to_device$|^pin_memory$", r"\.py$"),
)
"""The whole table, in the order in which kinds win."""

NESTED: Final = 2
"""Constructors within each other from which a stack is that of a module being built [count]."""

SAYS_LITTLE: Final = frozenset({Kind.INPUT, Kind.OTHER})

_PATTERNS: Final = tuple(
    (rule.kind, re.compile(rule.name), re.compile(rule.file) if rule.file else None) for rule in RULES
)


class Kinds:
    """Kinds of stacks; frames repeat, so what each says is looked up once."""

    def __init__(self, stacks: tuple[tuple[Frame, ...], ...]) -> None:
        self._stacks = stacks
        self._of_frame: dict[Frame, Kind] = {}
        self._of_stack: dict[int, Kind] = {}

    def __getitem__(self, stack: int) -> Kind:
        """The kind of the stack with this index; an index of no stack has no frames."""
        kind = self._of_stack.get(stack)
        if kind is None:
            frames = self._stacks[stack] if 0 <= stack < len(self._stacks) else ()
            kind = self._of_stack[stack] = self._kind(frames)
        return kind

    def _kind(self, frames: tuple[Frame, ...]) -> Kind:
        found = {self._frame(frame) for frame in frames}
        if not found:
            return Kind.UNSEEN
        if Kind.BACKWARD in found and Kind.FORWARD in found:
            found.add(Kind.RECOMPUTED)  # checkpointing runs modules inside the engine
        if found <= SAYS_LITTLE and sum(frame.name == "__init__" for frame in frames) >= NESTED:
            found.add(Kind.WEIGHT)  # modules are built of modules: a constructor within a constructor
        return min(found)

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
