"""What held the peak, and what it was for."""

import pytest

from vramcast.domain.cublas import SMALL_BYTES
from vramcast.domain.snapshot import Frame, Snapshot
from vramcast.recordings.examine import Asked, Examined, examine
from vramcast.recordings.lives import Category, lives_of
from vramcast.recordings.stacks import Kind, Kinds
from vramcast.units import MIB

from . import _made as made
from ._made import Run
from ._record import device_of


def examined(run: Run, first: int = 0) -> Examined:
    snapshot = run.dump(first)
    return examine(snapshot, snapshot.devices[0], Asked())


def test_lines_are_the_users_and_modules_the_nearest_forward() -> None:
    run = Run()
    library = made.python("linear", "/lib/python3.12/site-packages/torch/nn/functional.py", 5)
    run.make(4 * MIB, (made.cpp("at::empty"), library, *made.FORWARD))
    held = examined(run).held
    assert [group.name for group in held.by_line] == ["model.py:10 forward"]
    assert [group.name for group in held.by_module] == ["model.py:10"]


def test_a_backward_pass_without_python_is_named_by_its_node() -> None:
    run = Run()
    run.make(4 * MIB, made.BACKWARD)
    assert [group.name for group in examined(run).held.by_line] == ["MmBackward0"]


MINE = (made.python("step", "/home/me/adamw.py", 20), made.python("main"), made.MAIN)

LIVED = {
    "what a backward pass leaves are gradients, and what it frees are not": (
        "+a 2 BACKWARD, +b 4 BACKWARD, -b BACKWARD, -a ZERO_GRAD", "gradients temporaries"),
    "an unfinished backward pass": ("+a 2 FORWARD, +b 4 BACKWARD", "activations backward"),
    "a loss made outside modules, once the engine frees it": (
        "+loss 1 PLAIN, +b 1 PLAIN, -loss BACKWARD, -b PLAIN", "activations unknown"),
    "where only Python was recorded, what has no stack is the engine's": (
        "+a 8 FORWARD, +grad 4, +b 2, -a, -b, +c 2 STEP, -c MAIN_ONLY, -grad ZERO_GRAD",
        "activations gradients temporaries"),
    "what takes the place of weights": (
        "+w 8 MOVED, +s 8 STATES, +a 2 FORWARD, +scratch 8 MINE, +new 8 MINE, -s MINE, +weights 8 MINE, -scratch MINE, "
        "-w MINE, +b 2 FORWARD", "weights optimizer activations temporaries optimizer weights activations"),
    "the workspace of cuBLAS, by its size where no stack is": (f"+a {SMALL_BYTES}, +b {SMALL_BYTES + 512}",
                                                               "workspaces unknown"),
}
"""What is made (+) and freed (-): a name, half MiB or bytes, where -> what each was."""


@pytest.mark.parametrize("name", LIVED)
def test_what_a_block_was_follows_from_who_made_it_and_who_freed_it(name: str) -> None:
    calls, expected = LIVED[name]
    run, live = Run(), dict[str, int]()
    for call in calls.split(", "):
        block, *words = call[1:].split()
        stack = getattr(made, words[-1], MINE) if words and words[-1].isupper() else ()
        if call[0] == "-":
            run.drop(live[block], stack)
        else:
            size = int(words[0])
            live[block] = run.make(size if size > 99 else size * MIB // 2, stack)
    assert " ".join(_lives(run)).startswith(expected)


APPLY = made.python("apply", "/lib/python3.12/site-packages/torch/autograd/function.py", 317)


@pytest.mark.parametrize(("frames", "kind"), [
    (made.WORKSPACE, Kind.WORKSPACE),
    (made.ACCUMULATE, Kind.ACCUMULATED),
    (made.STATES, Kind.OPTIMIZER_STATE),
    (made.MOVED, Kind.WEIGHT),
    (made.STEP, Kind.STEP),
    (made.BACKWARD, Kind.BACKWARD),
    ((*made.FORWARD, *made.BACKWARD), Kind.RECOMPUTED),
    (made.FORWARD, Kind.FORWARD),
    (made.INPUT, Kind.INPUT),
    (made.PLAIN, Kind.OTHER),
    ((), Kind.UNSEEN),
    ((made.python("update", "/site-packages/transformers/cache_utils.py"), *made.FORWARD), Kind.CACHE),
    ((made.python("__init__", line=3), made.python("__init__", line=9)), Kind.WEIGHT),
    ((made.python("__init__", line=3), made.MAIN), Kind.OTHER),
    ((made.python("step", "/home/me/game.py"),), Kind.OTHER),
    ((made.cpp("c10d::Reducer::initialize_buckets(x)"),), Kind.ACCUMULATED),
    ((made.python("init_state", "/home/me/rwkv.py"), made.MAIN), Kind.OTHER),
    ((made.python("__init__", "/lib/optimum/modeling.py"), made.MAIN), Kind.OTHER),
    ((made.python("__init__", "/lib/bitsandbytes/optim/adamw.py"), made.MAIN), Kind.OPTIMIZER_STATE),
    ((made.python("backward", "/home/me/kernels.py"), APPLY), Kind.BACKWARD),
    ((*made.FORWARD, made.python("unpack_hook", "/torch/utils/checkpoint.py")), Kind.RECOMPUTED),
    ((made.python("compute_loss", "/home/me/train.py"), made.MAIN), Kind.FUNCTION),
    ((Frame("aten::mm", "", 0), Frame("autograd::engine::evaluate_function: MmBackward0", "", 0)), Kind.BACKWARD),
    ((Frame("aten::mm", "", 0), Frame("nn.Module: Linear_0", "", 0)), Kind.FORWARD),
    ((Frame("aten::mul", "", 0), Frame("Optimizer.step#AdamW.step", "", 0)), Kind.STEP),
    # an optimizer that a hook of the backward pass runs
    ((*made.STATES[:2], made.python("hook", "/home/me/train.py"), *made.ACCUMULATE), Kind.OPTIMIZER_STATE),
])
def test_rules_name_what_they_say(frames: tuple[Frame, ...], kind: Kind) -> None:
    assert kind_of(frames) == kind


def kind_of(frames: tuple[Frame, ...], *others: tuple[Frame, ...]) -> Kind:
    """Of a stack in a recording that has these others, too."""
    return Kinds(Snapshot(name="", format="torch", devices=(), stacks=((), tuple(frames), *others)))[bool(frames)]


def _lives(run: Run) -> list[Category]:
    snapshot: Snapshot = run.dump()
    lives = lives_of(device_of(snapshot))
    actions = snapshot.devices[0].trace.actions
    return [lives.category(index) for index, action in enumerate(actions) if action == 0]


def test_an_optimizer_of_the_users_own_is_one_beside_its_closure() -> None:
    wrapper = made.python("wrapper", "/lib/python3.12/site-packages/torch/optim/optimizer.py", 530)
    step, closure = made.python("step"), made.python("closure")
    forward = (*made.FORWARD[:1], closure, step, wrapper, made.MAIN)
    assert kind_of((made.python("orthogonalized"), step, wrapper, made.MAIN), forward) == Kind.STEP
    assert kind_of((closure, step, wrapper, made.MAIN), forward) == Kind.OTHER


# Frames of vLLM's start [vllm v1/engine/core.py, v1/worker/gpu_worker.py and gpu_model_runner.py]
def vllm(*frames: tuple[str, str]) -> tuple[Frame, ...]:
    return tuple(made.python(name, f"/lib/python3.12/site-packages/{file}") for name, file in frames)


CORE = vllm(
    ("collective_rpc", "vllm/v1/executor/uniproc_executor.py"), ("_initialize_kv_caches", "vllm/v1/engine/core.py"),
    ("__init__", "vllm/v1/engine/core.py"), ("__init__", "vllm/v1/engine/llm_engine.py"),
    ("__init__", "vllm/entrypoints/llm.py"),
)


@pytest.mark.parametrize(("inner", "kind"), [
    ((("_allocate_kv_cache_tensors", "vllm/v1/worker/gpu_model_runner.py"),
      ("initialize_kv_cache", "vllm/v1/worker/gpu_model_runner.py")), Kind.CACHE),
    ((("_allocate_kv_cache", "vllm/v1/worker/gpu/attn_utils.py"),
      ("init_kv_cache", "vllm/v1/worker/gpu/attn_utils.py")), Kind.CACHE),
    ((("forward", "vllm/model_executor/models/llama.py"), ("_dummy_run", "vllm/v1/worker/gpu_model_runner.py"),
      ("profile_run", "vllm/v1/worker/gpu_model_runner.py"),
      ("determine_available_memory", "vllm/v1/worker/gpu_worker.py")), Kind.FORWARD),
    ((("_dummy_run", "vllm/v1/worker/gpu_model_runner.py"),
      ("capture_model", "vllm/v1/worker/gpu_model_runner.py")), Kind.OTHER),
    ((("__init__", "vllm/v1/attention/backends/flashinfer.py"),
      ("create_metadata_builders", "vllm/v1/worker/utils.py"),
      ("initialize_kv_cache", "vllm/v1/worker/gpu_model_runner.py")), Kind.OTHER),
    ((("__init__", "vllm/v1/utils.py"), ("_make_buffer", "vllm/v1/worker/gpu_model_runner.py"),
      ("__init__", "vllm/v1/worker/gpu_model_runner.py"), ("init_device", "vllm/v1/worker/gpu_worker.py")),
     Kind.BUFFER),
    ((("create_weights", "vllm/model_executor/layers/linear.py"),
      ("__init__", "vllm/model_executor/layers/linear.py"), ("__init__", "vllm/model_executor/models/llama.py"),
      ("load_model", "vllm/v1/worker/gpu_model_runner.py")), Kind.WEIGHT),
    ((("_create_buffers", "sglang/srt/mem_cache/memory_pool.py"),
      ("__init__", "sglang/srt/mem_cache/memory_pool.py")), Kind.CACHE),
    ((("_create_buffers", "torchrl/envs/camera.py"), ("__init__", "torchrl/envs/camera.py")), Kind.OTHER),
])
def test_the_start_of_a_server_is_told_apart(inner: tuple[tuple[str, str], ...], kind: Kind) -> None:
    assert kind_of((*vllm(*inner), *CORE)) == kind


def test_what_a_recording_calls_a_block_goes_before_what_its_stack_tells() -> None:
    run = Run()
    for label in ("weights", "optimizer_state", ""):
        run.allocate(4 * MIB, stack=made.FORWARD, label=label)
    snapshot = run.dump()
    found = examine(snapshot, snapshot.devices[0], Asked())
    sizes = {group.name: group.size_bytes for group in found.held.by_category}
    assert sizes == {"weights": 4 * MIB, "optimizer": 4 * MIB, "activations": 4 * MIB}
