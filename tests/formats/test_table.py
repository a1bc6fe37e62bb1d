"""A tool whose file is rows and nothing else: one table reads it and writes it."""

from __future__ import annotations

import pytest
import yaml

from tests.formats.plans import training
from vramcast.errors import Unsupported
from vramcast.formats.files import Asked, Order
from vramcast.formats.lines import Line
from vramcast.formats.reading import Config
from vramcast.formats.table import Refusal, Row, Tool, read_tool, write_tool
from vramcast.formats.watched import Known

TOOL = Tool(
    file="tool.yaml",
    known=Known("llamafactory", "arguments"),
    engine="huggingface",
    start="tool train tool.yaml",
    rows=(
        Row("seq_len", "sequence_len", why="positions of a sample"),
        Row("micro_batch", "micro_batch_size"),
        Row("grad_accum", "gradient_accumulation_steps"),
        Row("attention", "kernels.attention", words={"fa2": "flash", "eager": "eager"}),
        Row("compile", "kernels.torch_compile", False),
    ),
    fixed=(Line("packing", False),),
    refusals=(Refusal(lambda job: job.plan.tp > 1, "the tool has no tp={plan.tp}; use tp=1"),),
)


def order(**options: object) -> Order:
    job = training("llama-3.2-1b", "2xh100", engine="huggingface", **{"attention": "flash", **options})
    return Order(job, Asked(job))


def test_what_a_table_writes_it_reads_back() -> None:
    asked = order(seq_len=4096, micro_batch=2, grad_accum=4, compile=True)
    (file,) = write_tool(asked, TOOL)
    assert "sequence_len: 4096                            # positions of a sample" in file.text
    table = yaml.safe_load(file.text)
    assert table["kernels"] == {"attention": "fa2", "torch_compile": True}
    read = read_tool(Config("tool.yaml", file.text, table), TOOL)
    assert read.options == {"engine": "huggingface", "seq-len": 4096, "attention": "flash", "compile": True}
    assert read.batch == {"micro": 2, "accumulation": 4}
    assert read.unread == ()
    assert {"seq_len", "micro_batch", "grad_accum", "attention", "compile"} <= file.said


def test_what_is_usual_is_not_written() -> None:
    (file,) = write_tool(order(), TOOL)
    assert "torch_compile" not in file.text


def test_what_a_table_has_no_word_for_is_refused() -> None:
    with pytest.raises(Unsupported, match=r"has no word for --attention efficient; use flash or eager"):
        write_tool(order(attention="efficient"), TOOL)
    with pytest.raises(Unsupported, match="the tool has no tp=2; use tp=1"):
        write_tool(order(tp=2), TOOL)


def test_what_a_file_says_and_no_row_has_is_named() -> None:
    table = {"sequence_len": "long", "micro_batch_size": 1, "packing": True, "made_up": 3}
    found = {one.name: one.why for one in read_tool(Config("tool.yaml", "", table), TOOL).unread}
    assert found["sequence_len"] == "'long' is not a whole number from 1 up"
    assert set(found) == {"sequence_len", "packing", "made_up"}
