"""How long tensors live in a simulated step, against torch's own profiler on real runs of the same code on the CPU.

What kernels take inside differs by device, so it is left out of the simulated peak, and the code is such that kernels
of the CPU take nothing: what is compared is what autograd, its engine and optimizers hold, and when they let go of it.
"""

import warnings

import pytest
import torch
from torch import nn
from torch.nn import functional as F
from torch.profiler import ProfilerActivity, profile
from torch.utils.checkpoint import checkpoint

from vramcast.catalogue.gpus import load_gpu
from vramcast.domain.program import Category
from vramcast.tracing.session import Session

pytestmark = pytest.mark.usefixtures("one_thread")  # two wait for each other on a busy machine
WITHIN = 0.001
INSIDE = {Category.TEMPORARIES, Category.WORKSPACES}


def highest(changes):
    held = most = 0
    for change in changes:
        held += change
        most = max(most, held)
    return most


def real_peak(run):
    """Of every byte the CPU's allocator gave and took back, in the order of time."""
    run()  # what torch makes once is there
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as profiler:
            alive = run()
    events = [event for event in profiler.profiler.kineto_results.events() if event.name() == "[memory]"]
    del alive
    return highest(event.nbytes() for event in sorted(events, key=lambda event: event.start_ns()))


def simulated_peak(run):
    session = Session(load_gpu("a100-sxm-80gb"))
    with session.active(), torch.device("cuda"):
        alive = run()
        blocks = session.device.tape.blocks
        events = ((blocks[abs(event) - 1], 1 if event > 0 else -1) for event in session.device.tape.events)
        peak = highest(sign * block.num_bytes for block, sign in events if block.category not in INSIDE)
        del alive
    return peak


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(64), nn.LayerNorm(64)
        self.qkv, self.out = nn.Linear(64, 192), nn.Linear(64, 64)
        self.feed = nn.Sequential(nn.Linear(64, 256), nn.GELU(), nn.Linear(256, 64))

    def attention(self, x):
        batch, length, width = x.shape
        q, k, v = self.qkv(x).view(batch, length, 3, 4, 16).permute(2, 0, 3, 1, 4)
        y = (q @ k.transpose(-1, -2) * 0.25).softmax(-1) @ v
        return self.out(y.transpose(1, 2).reshape(batch, length, width))

    def forward(self, x):
        x = x + self.attention(self.norm1(x))
        return x + self.feed(self.norm2(x))


class Language(nn.Module):
    def __init__(self, *, recomputes=False):
        super().__init__()
        self.embedding, self.head = nn.Embedding(1000, 64), nn.Linear(64, 1000, bias=False)
        self.blocks = nn.ModuleList(Block() for _ in range(2))
        self.recomputes = recomputes

    def forward(self, ids):
        x = self.embedding(ids)
        for block in self.blocks:
            x = checkpoint(block, x, use_reentrant=False, preserve_rng_state=False) if self.recomputes else block(x)
        return self.head(x).flatten(0, 1)


def perceptron():
    return nn.Sequential(nn.Linear(256, 512), nn.ReLU(), nn.Linear(512, 100))


def rows():
    return torch.randn(64, 256), torch.randint(0, 100, (64,))


def tokens():
    ids = torch.randint(0, 1000, (4, 64))
    return ids, ids.flatten()


def training(make_model, make_batch, optimizer, accumulate=1, **options):
    def run():
        model = make_model()
        steps = optimizer(model.parameters(), foreach=False, **options)
        for _ in range(2):
            steps.zero_grad()
            for _ in range(accumulate):
                x, y = make_batch()
                loss = F.cross_entropy(model(x), y)
                loss.backward()
            steps.step()
        return model, steps, loss

    return run


def inference():
    model = Language().eval()
    with torch.no_grad():
        return model, model(tokens()[0])


def sparse(optimizer, **options):
    def run():
        embedding = nn.Embedding(1000, 64, sparse=True)
        steps = optimizer(embedding.parameters(), **options)
        for _ in range(2):
            embedding(torch.arange(500)).pow(2).sum().backward()
            steps.step()
            steps.zero_grad()
        return embedding, steps

    return run


def operator(function, *shapes):
    """Forward and backward of a function of tensors, all of which get gradients."""

    def run():
        given = [torch.randn(*shape, requires_grad=True) for shape in shapes or [(256, 300)]]
        y = function(*given)
        y.square().sum().backward()
        return given, y

    return run


SGD = torch.optim.SGD
RUNS = {
    "AdamW": training(perceptron, rows, torch.optim.AdamW),
    "SGD": training(perceptron, rows, SGD, lr=0.1),
    "attention": training(Language, tokens, SGD, lr=0.1, momentum=0.9),
    "recomputation": training(lambda: Language(recomputes=True), tokens, SGD, lr=0.1, momentum=0.9),
    "accumulation": training(Language, tokens, SGD, accumulate=3, lr=0.1, momentum=0.9),
    "inference": inference,
    "SparseAdam": sparse(torch.optim.SparseAdam),
    "sparse, SGD": sparse(SGD, lr=0.1, foreach=False),
    "SiLU": operator(F.silu),
    "Mish": operator(F.mish),
    "product of all": operator(torch.prod),
    "products along": operator(lambda x: x.prod(1)),
    "running products": operator(lambda x: x.cumprod(1)),
    "logits": operator(lambda x, y: F.binary_cross_entropy_with_logits(x, y.sigmoid()), (256, 300), (256, 300)),
    "mean of scattered": operator(
        lambda x: torch.zeros(64, 300).scatter_reduce(
            0, torch.arange(256).remainder(64)[:, None].expand(-1, 300), x, "mean"
        )
    ),
    "two uses": operator(lambda x: x.exp() + x.sin() * x),
    "slices": operator(lambda x: x[:, :100] * x[:, 100:200] + x[:, 200:]),
    "gathered": operator(lambda x: x.gather(0, torch.zeros(64, 300, dtype=torch.long))),
    "softmax": operator(lambda x: x.softmax(-1)),
    "variance": operator(lambda x: x.var(0)),
}


@pytest.mark.filterwarnings("ignore:Sparse invariant checks")
@pytest.mark.parametrize("name", RUNS)
def test_simulated_tensors_live_as_long_as_real_ones(name):
    assert simulated_peak(RUNS[name]) == pytest.approx(real_peak(RUNS[name]), rel=WITHIN)
