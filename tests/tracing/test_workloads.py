"""Modules by name become steps: inputs, losses, optimizers, precision, recomputation."""

import pytest

from vramcast.domain.program import Category
from vramcast.errors import InvalidSpec, SourceError, UnknownName
from vramcast.question.tracing import build_trace
from vramcast.tracing.run import trace_job
from vramcast.tracing.targets import words_of

HERE = "tests.tracing._modules"
STACK = f"{HERE}:Stack"


def answer_of(target: str = STACK, arguments: object = (), **options: object):
    options.setdefault("input", ("64x256",))
    given = {name.replace("_", "-"): value for name, value in options.items() if value is not None}
    return trace_job(build_trace(target, given, arguments=arguments)).answer


def sizes(answer) -> dict[str, int]:
    found: dict[str, int] = {}
    for entry in answer.fullest.ledger:
        found[entry.category] = found.get(entry.category, 0) + entry.num_bytes
    return found


PARAMETERS = 4 * (256 * 1024 * 2 + 1024 + 256)


def test_weights_gradients_and_states_are_those_of_the_module() -> None:
    answer = answer_of(optimizer="adamw-fused", input=("8x256",))
    assert answer.num_parameters == PARAMETERS
    found = sizes(answer)
    assert found[Category.WEIGHTS] == pytest.approx(4 * PARAMETERS, rel=0.01)
    assert found[Category.GRADIENTS] == pytest.approx(4 * PARAMETERS, rel=0.01)
    assert found[Category.OPTIMIZER] == pytest.approx(8 * PARAMETERS, rel=0.01)


def test_inference_has_neither_gradients_nor_states() -> None:
    found = sizes(answer_of(eval=True))
    assert not {Category.GRADIENTS, Category.OPTIMIZER} & set(found)


@pytest.mark.parametrize(
    ("optimizer", "states"),
    [("sgd", 0), ("momentum", 4), ("adam", 8), ("adamw-loop", 8), ("amsgrad", 12), (f"{HERE}:Sgd", 0)],
)
def test_optimizers_hold_what_their_code_makes(optimizer: str, states: int) -> None:
    found = sizes(answer_of(optimizer=optimizer, input=("8x256",)))
    assert found.get(Category.OPTIMIZER, 0) == pytest.approx(states * PARAMETERS, rel=0.01, abs=1 << 14)


def test_recomputed_modules_save_activations() -> None:
    plain, blocks, named, by_class = (
        answer_of(input=("32768x256",), checkpoint=value, gpu="t4")
        for value in (None, ("blocks",), ("layers.*",), ("Block",))
    )
    assert blocks.peak.allocated_bytes < 0.7 * plain.peak.allocated_bytes
    assert blocks.peak == named.peak == by_class.peak


def test_half_precision_halves_what_is_saved() -> None:
    plain, mixed, half = (
        answer_of(input=("4096x256",), **options) for options in ({}, {"amp": "bf16"}, {"dtype": "bf16"})
    )
    assert half.peak.allocated_bytes < mixed.peak.allocated_bytes < plain.peak.allocated_bytes


def test_accumulation_keeps_the_peak_of_one_micro_batch() -> None:
    once, twice = (answer_of(accumulate=count, input=("4096x256",)) for count in (1, 2))
    assert twice.steps == once.steps
    assert twice.events > 1.5 * once.events
    assert twice.peak.allocated_bytes == pytest.approx(once.peak.allocated_bytes, rel=0.2)


def test_gradients_that_are_zeroed_stay() -> None:
    freed, kept = (answer_of(zero_grad=value, input=("4096x256",)) for value in ("none", "zero"))
    assert kept.peak.allocated_bytes > freed.peak.allocated_bytes


def test_a_scaler_and_clipping_run() -> None:
    answer = answer_of(amp="fp16", clip_grad=True)
    assert answer.steps == 3


def test_the_batch_is_the_first_dimension() -> None:
    assert answer_of(input=("64x256",), batch=32).peak == answer_of(input=("32x256",)).peak == answer_of(
        input=("Bx256",), batch=32
    ).peak


def test_inputs_by_name_and_of_integers_and_a_loss_of_its_own() -> None:
    answer = answer_of(f"{HERE}:Attends", input=("ids=BxS:int64", "weights=BxS"), batch=4, seq_len=16)
    assert answer.question["batch"] == 4 and answer.question["seq_len"] == 16
    assert any("own" in text for text in answer.assumptions)


def test_factories_classes_and_modules_are_targets() -> None:
    made = answer_of(f"{HERE}:build", ["width=256"])
    assert made.peak == answer_of().peak
    assert answer_of(f"{HERE}:READY", input=("8x64",)).num_parameters == 2 * (64 * 256 * 2 + 256 + 64)


def test_losses_by_name_and_of_the_user() -> None:
    for loss in ("mean", "sum", "mse", "cross_entropy", f"{HERE}:half"):
        assert answer_of(loss=loss).steps == 3


def test_the_same_question_has_the_same_answer() -> None:
    assert answer_of().ranks == answer_of().ranks


@pytest.mark.parametrize(("target", "options", "kind", "words"), [
    ("tests.tracing.nosuch:f", {}, SourceError, "not installed"),
    (f"{HERE}:Stak", {}, UnknownName, "Stack"),
    ("Stack", {}, InvalidSpec, "module:factory"),
    (f"{HERE}:build", {}, InvalidSpec, "--arg"),
    (f"{HERE}:nothing", {}, InvalidSpec, "object of int"),
    (f"{HERE}:Picky", {"eval": True}, InvalidSpec, "this never works"),
    (f"{HERE}:Picky", {}, InvalidSpec, "--eval"),
    (STACK, {"input": ()}, InvalidSpec, "--input"),
    (STACK, {"input": ("8x255",)}, InvalidSpec, "layers.0.up, given 8 x 255"),
    (STACK, {"loss": f"{HERE}:nothing"}, InvalidSpec, "nothing"),
    (STACK, {"loss": "torch:sigmoid"}, InvalidSpec, "scalar"),
    (STACK, {"optimizer": "adamww"}, UnknownName, "adamw"),
    (STACK, {"checkpoint": ("nosuch",)}, UnknownName, "nosuch"),
    (STACK, {"seq-len": 8}, InvalidSpec, "BxS"),
])
def test_what_cannot_be_traced_gets_one_sentence(target, options, kind, words) -> None:
    given = {"input": ("8x256",), **options}
    with pytest.raises(kind, match=words) as caught:
        trace_job(build_trace(target, given))
    assert "\n" not in str(caught.value)


def test_errors_name_tensors_of_the_card_and_have_one_full_stop_at_most() -> None:
    error = RuntimeError("expected Long; but got MetaFloatType instead.")
    assert words_of(error) == "expected Long; but got torch.cuda.FloatTensor instead"
    with pytest.raises(InvalidSpec, match=r"\), in layers\.0"):
        answer_of(input=("8x255",))
