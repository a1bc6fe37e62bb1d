"""Operations against weights: every model of the catalogue needs two a weight and token forward."""

import pytest

from vramcast.blocks.parameters.layer import layer_parameters
from vramcast.blocks.parameters.model import named_parameters
from vramcast.blocks.sizes import Sizes
from vramcast.catalogue.index import MODELS
from vramcast.catalogue.models import load_model
from vramcast.domain.model import Attention, Head, Model, MoE
from vramcast.timing.training.operators import forward_flops, layer_operators, output_elements
from vramcast.timing.training.parts import Shape, Style

LENGTH = 256


def decoders() -> list[Model]:
    models = [load_model(name) for name in sorted(set(MODELS.names()))]
    return [model for model in models if len(model.stacks) == 1 and model.main.causal and model.head is Head.LM]


DECODERS = decoders()


def active_weights(model: Model) -> float:
    """Matrices of the model that a token multiplies: of E experts its k, of tables none but a tied head."""
    named = [owned for owned in named_parameters(model) if owned.parameter.kind == "matrix"]
    whole = sum(owned.parameter.elements * owned.repeats for owned in named if not owned.parameter.expert)
    chosen = sum(
        run.count * run.layer.channel.top_k * parameter.elements / run.layer.channel.num_experts
        for run in model.main.runs if isinstance(run.layer.channel, MoE)
        for parameter in layer_parameters(run.layer, hidden=model.hidden)
        if parameter.expert and parameter.kind == "matrix"
    )
    return whole + chosen + (output_elements(model) if model.tied else 0)


def in_two_steps(model: Model) -> bool:
    """DeepSeek V4, which is not timed where operators run one by one."""
    return any(isinstance(run.layer.mixer, Attention) and run.layer.mixer.out_lora_rank for run in model.main.runs)


def operator_flops(model: Model, style: Style) -> tuple[float, float]:
    """Operations of the products of all layers, one token forward and backward."""
    found = [
        (run.count * operator.flops / LENGTH, run.count * operator.backward_flops / LENGTH)
        for run in model.main.runs
        for operator in layer_operators(run.layer, hidden=model.hidden, shape=Shape(1, LENGTH), style=style)
        if operator.kind in ("product", "grouped")
    ]
    return sum(forward for forward, _ in found), sum(backward for _, backward in found)


def test_a_decoder_needs_two_operations_a_token_for_every_weight_it_meets() -> None:
    for model in DECODERS:
        found = forward_flops(model, LENGTH)
        assert found.products + found.output == pytest.approx(2 * active_weights(model), rel=5e-3), model.name


def test_operators_that_are_timed_do_six_operations_for_every_weight() -> None:
    for model in DECODERS:
        for style in [Style(), Style(sizes=Sizes(batch=1, seq_len=LENGTH, hidden=0))]:
            if style.sizes is not None and in_two_steps(model):
                continue
            forward, backward = operator_flops(model, style)
            weights = active_weights(model) - output_elements(model)
            assert forward + backward == pytest.approx(6 * weights, rel=5e-3), model.name
