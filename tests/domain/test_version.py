import pytest

from vramcast.api import job_of
from vramcast.domain.version import check_version, named
from vramcast.engines.serving.table import SERVING
from vramcast.engines.training import TRAINING
from vramcast.errors import InvalidSpec
from vramcast.estimate.training import answer
from vramcast.question.build import training_engine
from vramcast.question.serving import parse_engine

ASKED = {"model": "llama-3.2-1b", "gpus": "h100", "seq_len": 512}


def asked(**options):
    return job_of({name.replace("_", "-"): value for name, value in (ASKED | options).items()})


def test_a_version_that_is_older_than_known_or_none_is_refused():
    assert check_version("x", "4.30", oldest=(4, 30), newest=(5, 1)) == (4, 30)
    for text in ("4.29", "latest"):
        with pytest.raises(InvalidSpec):
            check_version("x", text, oldest=(4, 30), newest=(5, 1))


def test_the_series_of_the_newest_release_is_answered_as_the_newest_by_every_engine():
    for name, known in TRAINING.items():
        series, version = training_engine(f"{name}@{known.newest[0]}")
        assert (series, version) == (name, known.newest)
    for name, engine in SERVING.items():
        assert parse_engine(f"{name}@{engine.newest[0]}") == (name, engine.newest)


@pytest.mark.parametrize("engine", ["pytorch", "huggingface", "deepspeed", "unsloth", "megatron"])
def test_a_version_newer_than_known_is_answered_as_the_newest_and_says_so(engine):
    newest = answer(asked(engine=named(engine, TRAINING[engine].newest)))
    beyond = answer(asked(engine=f"{engine}@9999.1"))
    assert beyond.ranks == newest.ranks == answer(asked(engine=engine)).ranks
    assert any("9999.1 changed since" in text for text in beyond.ignored) and not newest.ignored


def test_a_sharder_needs_something_to_shard():
    with pytest.raises(InvalidSpec, match="nothing is sharded"):
        answer(asked(engine="huggingface", gpus="2xh100", sharded_by="deepspeed"))
