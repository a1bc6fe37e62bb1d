"""Stacks in words: which frames are a user's, which module they ran in, what to show of them.

Frames of C++ have file names such as `??` or `Engine.cpp`; recordings made with `stacks="python"` have none of them.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from typing import Final, NamedTuple

from vramcast.domain.snapshot import Frame

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
