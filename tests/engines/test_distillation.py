"""A student that learns from what a frozen teacher says beside it."""

from importlib import import_module

import pytest

from vramcast.blocks.parameters.model import count_parameters
from vramcast.catalogue.models import load_model
from vramcast.domain.job import Job, Phase
from vramcast.domain.model import Checkpoint
from vramcast.domain.program import Alloc, Category, Loop, Program, Tensor, extent
from vramcast.engines.training import engine_of
from vramcast.errors import InvalidSpec, Unsupported
from vramcast.estimate.checks import refuse_ignored
from vramcast.question.build import build_job

STUDENT, TEACHER, POSITIONS, MICRO = "qwen3-0.6b", "qwen3-1.7b", 1024, 2
LOGITS = POSITIONS * MICRO * 151_936


def asked(**options: object) -> Job:
    given = {"model": STUDENT, "gpus": "1xh100-sxm-80gb", "objective": "gkd", "teacher": TEACHER, "engine": "deepspeed",
             "seq-len": POSITIONS, "micro-batch": MICRO, **options}
    return build_job(given, resolve=lambda name: Checkpoint(model=load_model(name)))


def programs(job: Job) -> dict[Phase, Program]:
    refuse_ignored(job)
    return dict(import_module(engine_of(job).module).ranks(job)[0].phases)


def tensors(program: Program) -> list[Tensor]:
    found: list[Tensor] = []
    for node in program:
        found += tensors(node.body) * node.count if isinstance(node, Loop) else ()
        found += [node.tensor] if isinstance(node, Alloc) else ()
    return found


def test_the_teacher_is_loaded_once_and_never_learns() -> None:
    load = tensors(programs(asked(zero=1))[Phase.LOAD])
    weights = sum(one.num_bytes for one in load if one.owner.startswith("teacher."))
    assert weights == 2 * count_parameters(load_model(TEACHER)).total
    assert {one.category for one in load if one.owner.startswith("teacher.")} == {Category.WEIGHTS}


def test_a_teacher_loaded_in_float32_stays_so_beside_autocast_and_not_under_deepspeed() -> None:
    def held(**more: object) -> int:
        given = {"engine": "huggingface", "engine-option": ("teacher_dtype=float32",), **more}
        load = tensors(programs(asked(**given))[Phase.LOAD])
        return sum(one.num_bytes for one in load if one.owner.startswith("teacher."))

    each = count_parameters(load_model(TEACHER)).total
    assert held(precision="amp-bf16") == 4 * each
    assert held(precision="mixed-bf16", zero=1, **{"sharded-by": "deepspeed"}) == 2 * each


def test_an_anchored_loss_is_that_of_its_own_code() -> None:
    # LLaMA-Factory's asft_loss_func in a simulation: 9,963 MiB over 4 x 1,024 positions, 64,000 words and a small
    # network, 1.5 % more than this; as large as the logits in 16 bits 19 tensors are there at once
    more = {"engine-option": ("log_probs=asft",), "micro-batch": 4, "recompute": "full"}
    step = programs(asked(teacher="itself", layers=1, **more))[Phase.STEP]
    assert extent(step).peak / (LOGITS * 2 * 2) == pytest.approx(19, abs=0.5)


@pytest.mark.parametrize(("beta", "kept"), [("0.5", 7), ("0", 2), ("1", 3)])
def test_a_divergence_keeps_what_autograd_saves_of_it(beta: str, kept: int) -> None:
    # counted with torch.autograd.graph.saved_tensors_hooks around TRL's generalized_jsd_loss
    step = tensors(programs(asked(**{"zero": 1, "engine-option": (f"beta={beta}",)}))[Phase.STEP])
    names = ("log_softmax", "divergence.")
    saved = (one for one in step if one.owner == "head" and one.name.startswith(names) and ".rows" not in one.name)
    assert sum(one.num_bytes for one in saved) == kept * 2 * LOGITS


def test_rows_that_come_and_go_are_less_than_all_at_once() -> None:
    whole, rows = (extent(programs(asked(**{"zero": 1, "engine-option": given}))[Phase.STEP]).peak
                   for given in (("beta=0.5",), ("log_probs=rows",)))
    assert rows < whole
    assert whole - rows < 6 * 2 * LOGITS


def test_the_teacher_asks_before_the_loss_is_there() -> None:
    order = [f"{one.owner}/{one.name}" for one in tensors(programs(asked(zero=1))[Phase.STEP])]
    last = max(place for place, path in enumerate(order) if path.startswith("teacher."))
    assert order.index("head/head.output") < last < order.index("head/log_softmax")


def test_zero_3_divides_the_teacher_and_gathers_the_student_to_write() -> None:
    four = asked(zero=3, gpus="4xh100-sxm-80gb")
    alone = sum(one.num_bytes for one in tensors(programs(four)[Phase.LOAD]) if one.owner.startswith("teacher."))
    assert alone < 2 * count_parameters(load_model(TEACHER)).total / 3
    writes = asked(**{"zero": 3, "gpus": "4xh100-sxm-80gb", "completion-len": 128})
    assert any("to write answers" in one.name for one in tensors(programs(writes)[Phase.STEP]))


def test_torchtune_keeps_both_distributions_of_every_chunk() -> None:
    step = tensors(programs(asked(engine="torchtune@0.6", precision="bf16"))[Phase.STEP])
    assert next(one.num_bytes for one in step if one.name == "divergence.kept") == (4 + 4 + 1) * LOGITS


def test_torchtunes_reference_logits_live_until_it_is_asked_again() -> None:
    plain = {"objective": "dpo", "teacher": None, "engine": "torchtune", "precision": "bf16"}
    own = tensors(programs(asked(**plain))[Phase.STEP])
    beside = tensors(programs(asked(**plain, peft="lora", **{"adapter-dtype": "bf16"}))[Phase.STEP])
    held = [one.num_bytes for one in beside if one.name == "logits held by the loop"]
    assert held == [4 * 2 * LOGITS]  # chosen and rejected, in fp32
    assert not [one for one in own if one.name == "logits held by the loop"]


@pytest.mark.parametrize("options", [{"teacher": None}, {"objective": "sft"}])
def test_a_teacher_and_who_learns_from_it_come_together(options: dict[str, object]) -> None:
    with pytest.raises(InvalidSpec, match="gkd"):
        asked(**options)


def test_other_words_and_other_losses_are_refused() -> None:
    with pytest.raises(InvalidSpec, match="vocabulary"):
        programs(asked(zero=1, teacher="llama-3.1-8b"))
    with pytest.raises(Unsupported, match="leave --loss"):
        programs(asked(zero=1, loss="fused_linear"))
    with pytest.raises(Unsupported, match="engine huggingface"):
        programs(asked(engine="pytorch"))


@pytest.mark.parametrize(("log_probs", "held"), [("behind", 2 * 2), ("whole+nll", 1.5 * 2)])
def test_xtuner_holds_logits_until_the_loss_is_there(log_probs: str, held: float) -> None:
    options = ("log_probs=" + log_probs, *(("precompute_ref_log_probs=true",) if "nll" in log_probs else ()))
    asks = {"objective": "dpo", "teacher": None, "engine": "huggingface", "loss": "eager", "precision": "amp-fp16",
            "engine-option": (*options, "converts_outputs=false")}
    order = tensors(programs(asked(**asks))[Phase.STEP])
    widths = {"head.output": 2, "teacher.logits": 2, "logits.chosen": 2, "log_softmax": 4}
    found = {one.name: one.num_bytes for one in order if one.owner == "head" and one.name in widths}
    assert found["log_softmax"] == 4 * 2 * LOGITS or "nll" in log_probs  # the last of them is of the chosen alone
    assert sum(size for name, size in found.items() if name != "log_softmax") == held * 2 * LOGITS
