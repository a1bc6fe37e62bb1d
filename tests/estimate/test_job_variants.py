"""Options between two jobs: what they say turns the one into the other."""

from msgspec.structs import fields

from vramcast.domain.job import Peft, Plan, Workload
from vramcast.estimate.variants import PEFT_OPTIONS
from vramcast.question.options import OPTIONS

DERIVED = {"trainable_parameters"}


def test_every_field_of_a_plan_is_an_option_of_the_same_name() -> None:
    named = {field.name.replace("_", "-") for noun in (Plan, Workload) for field in fields(noun)}
    assert named <= set(OPTIONS)
    adapters = {PEFT_OPTIONS.get(field.name, field.name.replace("_", "-")) for field in fields(Peft)}
    assert adapters - {name.replace("_", "-") for name in DERIVED} <= set(OPTIONS)
