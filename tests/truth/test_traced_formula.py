"""The formula path and the traced one, held against each other."""

import pytest

pytest.importorskip("torch")
pytest.importorskip("transformers")

from truth.traced_formula import Compared, Peak, compare, why

MEBIBYTE = 2**20


@pytest.mark.parametrize("name", ["smollm2-135m", "opt-125m", "distilbert-base-uncased", "vit-base-patch16-224"])
def test_formula_and_trace_agree(name):
    compared = compare(name)
    assert isinstance(compared, Compared), compared
    assert compared.is_within


@pytest.mark.parametrize("name", ["gpt2", "bloom-560m"])
def test_formula_and_trace_ask_for_the_same_memory(name):
    assert compare(name).error_without_slack == pytest.approx(0, abs=1e-4)


def test_a_table_that_is_the_head_costs_a_third_one_while_its_gradients_are_added():
    compared = compare("xlm-roberta-base")
    assert compared.error_without_slack == pytest.approx(0, abs=0.002)


def test_a_network_without_an_answer_says_why():
    assert "KeyError" in compare("no-such-network") or "no-such-network" in compare("no-such-network")


def test_what_is_further_off_than_the_bar_is_explained_or_missed():
    near = Compared("any", Peak(1000 * MEBIBYTE, 0), Peak(1005 * MEBIBYTE, 0))
    far = near._replace(formula=Peak(900 * MEBIBYTE, 0))
    assert why(near) == ""
    assert "MISSED" in why(far)
    assert "weight" in why(far._replace(name="gpt2"))


def test_slack_is_no_part_of_what_was_asked_for():
    compared = Compared("any", Peak(100, 10), Peak(120, 30))
    assert compared.error_without_slack == 0
    assert compared.error == pytest.approx(-1 / 6)
