"""The table of cuDNN workspaces."""

import pytest

from vramcast.catalogue.contexts import WORKSPACE_COLUMNS as COLUMNS
from vramcast.catalogue.contexts import WORKSPACES as FILE
from vramcast.catalogue.contexts import read_shares, workspace_share
from vramcast.errors import SourceError

HEAD = ",".join(COLUMNS)
ROW = "2.0,dense,data,1,2,4,measured,2026-11-21,medium"


def test_every_kind_of_kernel_and_phase_has_a_share():
    for kernel in ("pointwise", "dense", "strided", "grouped", "narrow"):
        for phase in ("forward", "data", "filter"):
            assert workspace_share(kernel, phase, (2, 13)) >= 0


def test_the_newest_row_that_is_not_newer_than_torch_counts():
    assert workspace_share("dense", "data", (1, 13)) == workspace_share("dense", "data", (1, 10)) == 0
    assert workspace_share("dense", "data", (2, 0)) == workspace_share("dense", "data", (2, 13)) > 0


@pytest.mark.parametrize(("text", "problem"), [
    ("kernel,phase\n", "columns must be"),
    (f"{HEAD}\n{ROW[:-7]}\n", "every column must be filled"),
    (f"{HEAD}\n{ROW}\n{ROW}\n", "stands twice"),
    (f"{HEAD}\n{ROW.replace('2.0', 'two', 1)}\n", "torch_since must be a version"),
    (f"{HEAD}\n{ROW.replace(',2,', ',many,')}\n", "'many' is not a number"),
    (f"{HEAD}\n{ROW.replace(',2,', ',5,')}\n", "low <= share <= high"),
])
def test_a_bad_table_is_named_with_its_row(text, problem):
    with pytest.raises(SourceError, match=problem):
        read_shares(text, file="t.csv")


def test_the_file_reads_as_it_stands():
    assert read_shares(FILE.read_text(encoding="utf-8"), file=FILE.name)
