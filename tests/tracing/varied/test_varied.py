"""What a run takes as a function of its sizes: equal to running it at settings that nobody looked at."""

import json
import random

import pytest
import torch
from msgspec.structs import replace

from vramcast.errors import InvalidSpec
from vramcast.question.tracing import build_script, build_trace
from vramcast.question.varied import at_point, parse_axes, placed
from vramcast.report.messages import Words
from vramcast.report.varied import ShownVaried
from vramcast.tracing.run import ran_job, trace_job
from vramcast.tracing.varied.answers import Varied, varied
from vramcast.tracing.varied.programs import differences

HERE = "tests.tracing.varied.test_varied"
CARD = {"gpu": "t4", "steps": 2}


class Attention(torch.nn.Module):
    """A block of a GPT whose loss leaves out the first position."""

    def __init__(self, width: int = 64, words: int = 500) -> None:
        super().__init__()
        self.table, self.norm = torch.nn.Embedding(words, width), torch.nn.LayerNorm(width)
        self.qkv, self.head = torch.nn.Linear(width, 3 * width), torch.nn.Linear(width, words)

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        x = self.table(ids)
        q, k, v = (part.unflatten(-1, (2, -1)).transpose(1, 2) for part in self.qkv(self.norm(x)).chunk(3, -1))
        y = torch.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).flatten(2)
        logits = self.head(x + y)[:, :-1].contiguous()  # which a batch of one is already
        return torch.nn.functional.cross_entropy(logits.flatten(0, 1), ids[:, 1:].flatten())


def network() -> torch.nn.Module:
    """Convolutions, batch norm and pooling."""
    return torch.nn.Sequential(
        torch.nn.Conv2d(3, 16, 7, stride=2, padding=3), torch.nn.BatchNorm2d(16), torch.nn.ReLU(),
        torch.nn.MaxPool2d(3, 2, 1), torch.nn.Conv2d(16, 32, 3, padding=1), torch.nn.BatchNorm2d(32),
        torch.nn.ReLU(), torch.nn.AdaptiveAvgPool2d(1), torch.nn.Flatten(), torch.nn.Linear(32, 10),
    )


JOBS = {
    "attention": (
        f"{HERE}:Attention", {"input": ("BxS:int64",), "loss": "own", "amp": "fp16"}, "batch=1..48,seq=16..1024",
    ),
    "network": (f"{HERE}:network", {"input": ("Bx3xSxS",)}, "batch=2..64,image=32..256/32"),
    "blocks": ("tests.tracing._modules:Stack", {"input": ("BxSx256",)}, "batch=1..64,seq=1..512"),
}


@pytest.fixture
def job_of():
    def build(name: str):
        target, options, axes = JOBS[name]
        return build_trace(target, {**CARD, **options, "vary": (axes,)}), parse_axes([axes])

    return build


@pytest.mark.parametrize("name", JOBS)
def test_tapes_equal_runs_at_settings_that_were_not_looked_at(name: str, job_of) -> None:
    job, axes = job_of(name)
    found, chooser = Varied(job, axes), random.Random(3)
    if name == "attention":  # where other calls are made is another region
        assert {(region.box[0][0], region.box[0][-1]) for region in found.survey.regions} == {(1, 1), (2, 48)}
    points = [tuple(chooser.choice(axis.values) for axis in axes) for _ in range(4)]
    try:
        made = {point: (found.survey.tape(point), found.needs(point).rank) for point in points}
        asked = [found.survey.tape(point, is_asked=True) for point in points]
    finally:
        found.close()
    for point, exact in zip(points, asked, strict=True):
        run, _ = ran_job(at_point(job, axes, point))
        tape, rank = made[point]
        assert not list(differences(tape, run.tape)) and not list(differences(exact, run.tape)), point
        answer = trace_job(at_point(job, axes, point)).answer.fullest
        assert (rank.peak, rank.phases) == (answer.peak, answer.phases)


@pytest.mark.parametrize("headroom", [0.0, None])
def test_the_largest_fits_and_its_successor_does_not_and_the_formula_is_near(headroom: float | None, job_of) -> None:
    job, axes = job_of("blocks")
    job = replace(job, capacity_bytes=(450 if headroom is None else 400) << 20)
    answer = varied(job, axes, headroom=headroom)
    batch, seq = answer.largest
    assert batch.value == 64 and batch.is_end
    assert seq.value is not None
    for value, fits in ((seq.value, True), (seq.value + 1, False)):
        if value <= axes[1].high:
            assert trace_job(at_point(job, axes, (1, value))).answer.leaves(headroom) is fits
    assert answer.off_share < 0.25  # small blocks are rounded up to 512 bytes
    assert any(piece.is_exact for piece in answer.formula)
    assert {tuple(term.powers) for piece in answer.formula for term in piece.terms} >= {("batch", "seq")}


def test_the_report_is_a_formula_a_map_and_json_that_says_the_same(job_of) -> None:
    found = varied(*job_of("blocks"))
    shown = ShownVaried(**{name: getattr(found, name) for name in found.__struct_fields__})
    english, chinese = shown.text(Words("en")), shown.text(Words("zh"))
    assert english.startswith("largest batch that fits: 64 or more at seq 1") and " + batch x seq x " in english
    assert "放得下的最大 batch" in chinese
    document = json.loads(shown.to_json())
    assert document["schema"] == 1 and len(document["points"]) == 7 * 10
    assert set(document["points"][0]) == {"at", "allocated_bytes", "reserved_bytes", "device_bytes", "fits"}
    assert {"axes", "formula", "largest", "off_share", "traces", "checked", "regions"} <= set(document)


SCRIPT = '''
import argparse, torch
parser = argparse.ArgumentParser()
parser.add_argument("--batch-size", type=int, default=8)
args = parser.parse_args()
block_size, rate = 32, 1e-3
model = torch.nn.Linear(256, 256).cuda()
optimizer = torch.optim.Adam(model.parameters(), lr=rate)
for _ in range(4):
    model(torch.randn(args.batch_size, block_size, 256, device="cuda")).sum().backward()
    optimizer.step()
    optimizer.zero_grad()
'''


def test_a_script_is_varied_where_it_says_its_sizes(tmp_path, forked) -> None:
    path = tmp_path / "train.py"
    path.write_text(SCRIPT)
    job = build_script(str(path), {"gpu": "t4"})
    answer = varied(job, parse_axes(["batch=1..32,seq=8..64"]))
    assert [axis.where for axis in answer.axes] == ["--batch-size", "block_size"]
    assert {tuple(term.powers) for piece in answer.formula for term in piece.terms} >= {("batch", "seq")}


@pytest.mark.parametrize(("axis", "text"), [
    ("seq", "block_size, rate = 7, 1e-3"),
    ("seq:rate", None),
    ("image", None),
    ("depth:block_size=1..9", "block_size, rate = 7, 1e-3"),
])
def test_a_number_of_a_script_is_set_where_it_stands(axis: str, text: str | None, tmp_path) -> None:
    path = tmp_path / "train.py"
    path.write_text(SCRIPT)
    job = build_script(str(path), {"gpu": "t4"}, arguments=["--batch-size", "4"])
    axes = placed(parse_axes([axis, "batch"]), job)
    if axis == "image":
        assert at_point(job, axes, (224, 2)).data == {"image": 224}
    elif text is None:
        with pytest.raises(InvalidSpec, match="no argument or constant"):
            at_point(job, axes, (7, 2))
    else:
        found = at_point(job, axes, (7, 2))
        assert text in found.text and found.arguments == ("--batch-size=2",)


def test_a_letter_that_is_neither_given_nor_varied_is_asked_for() -> None:
    with pytest.raises(InvalidSpec, match="letter S"):
        build_trace("tests.tracing._modules:Stack", {"input": ("BxSx256",), "vary": ("batch",)})
