"""Cost: money per hour, per million tokens and per run, from a price and a speed."""

from vramcast.api import serve_answer


def test_an_inverse_question_about_cards_leaves_the_machine_and_its_price_behind() -> None:
    found = serve_answer({"model": "llama-3.1-8b", "gpus": "aws:p5.4xlarge", "context": 8192, "find": "smallest-gpu"})
    assert found.found is not None and "aws" not in str(found.found.what)
    assert found.cost is None
