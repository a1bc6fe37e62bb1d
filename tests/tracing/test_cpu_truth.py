"""The traced peak on the host is what torch's own profiler sees of real runs on the CPU."""

import warnings

import pytest

torch = pytest.importorskip("torch")

from torch import nn  # noqa: E402
from torch.nn import functional as F  # noqa: E402
from torch.profiler import ProfilerActivity, profile  # noqa: E402
from torch.utils.checkpoint import checkpoint  # noqa: E402

from vramcast.tracing.session import Session  # noqa: E402

WITHIN = 0.001
VECTORS = "AVX512", "AVX2"


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


def traced_peak(run):
    session = Session(None)
    with session.active():
        alive = run()
        tape = session.device.tape
        peak = highest((1 if event > 0 else -1) * tape.blocks[abs(event) - 1].num_bytes for event in tape.events)
        del alive
    return peak


class Attention(nn.Module):
    def __init__(self, *, is_fused):
        super().__init__()
        self.qkv, self.out, self.is_fused = nn.Linear(64, 192), nn.Linear(64, 64), is_fused

    def forward(self, x):
        batch, length, width = x.shape
        q, k, v = self.qkv(x).view(batch, length, 3, 4, 16).permute(2, 0, 3, 1, 4)
        if self.is_fused:
            y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        else:
            y = (q @ k.transpose(-1, -2) * 0.25).softmax(-1) @ v
        return self.out(y.transpose(1, 2).reshape(batch, length, width))


class Block(nn.Module):
    def __init__(self, *, is_fused):
        super().__init__()
        self.norm1, self.norm2, self.attention = nn.LayerNorm(64), nn.LayerNorm(64), Attention(is_fused=is_fused)
        self.feed = nn.Sequential(nn.Linear(64, 256), nn.GELU(), nn.Linear(256, 64))

    def forward(self, x):
        x = x + self.attention(self.norm1(x))
        return x + self.feed(self.norm2(x))


class Language(nn.Module):
    def __init__(self, *, is_fused=False, checkpoints=False):
        super().__init__()
        self.embedding, self.head = nn.Embedding(1000, 64), nn.Linear(64, 1000, bias=False)
        self.blocks = nn.ModuleList(Block(is_fused=is_fused) for _ in range(2))
        self.checkpoints = checkpoints

    def forward(self, ids):
        x = self.embedding(ids)
        for block in self.blocks:
            x = checkpoint(block, x, use_reentrant=False) if self.checkpoints else block(x)
        return self.head(x).flatten(0, 1)


def perceptron():
    return nn.Sequential(nn.Linear(256, 512), nn.ReLU(), nn.Linear(512, 100))


def convolutions():
    return nn.Sequential(
        nn.Conv2d(3, 16, 3, padding=1), nn.BatchNorm2d(16), nn.ReLU(), nn.MaxPool2d(2),
        nn.Conv2d(16, 32, 3, padding=1, bias=False), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten(),
        nn.Linear(32, 10),
    )


def tokens():
    ids = torch.randint(0, 1000, (4, 64))
    return ids, ids.flatten()


def images():
    return torch.randn(8, 3, 32, 32), torch.randint(0, 10, (8,))


def rows():
    return torch.randn(64, 256), torch.randint(0, 100, (64,))


def training(make_model, make_batch, make_optimizer, accumulate=1):
    def run():
        model = make_model()
        optimizer = make_optimizer(model.parameters())
        for _ in range(2):
            optimizer.zero_grad()
            for _ in range(accumulate):
                x, y = make_batch()
                loss = F.cross_entropy(model(x), y)
                loss.backward()
            optimizer.step()
        return model, optimizer, loss

    return run


def momentum(parameters):
    return torch.optim.SGD(parameters, 0.1, momentum=0.9)


RUNS = {
    "perceptron, AdamW": training(perceptron, rows, torch.optim.AdamW),
    "perceptron, SGD": training(perceptron, rows, lambda parameters: torch.optim.SGD(parameters, 0.1)),
    "attention by hand": training(Language, tokens, momentum),
    "fused attention": training(lambda: Language(is_fused=True), tokens, torch.optim.AdamW),
    "checkpoints": training(lambda: Language(checkpoints=True), tokens, momentum),
    "accumulation": training(Language, tokens, momentum, accumulate=3),
}


@pytest.fixture
def one_thread():
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


@pytest.mark.parametrize("name", RUNS)
def test_traced_peak_is_the_profilers(name):
    assert traced_peak(RUNS[name]) == pytest.approx(real_peak(RUNS[name]), rel=WITHIN)


@pytest.mark.skipif(
    torch.backends.cpu.get_cpu_capability() not in VECTORS or not torch.backends.mkldnn.is_available(),
    reason="oneDNN's layouts are known for x86 vectors only",
)
def test_traced_peak_of_convolutions_is_the_profilers(one_thread):
    run = training(convolutions, images, torch.optim.Adam)
    assert traced_peak(run) == pytest.approx(real_peak(run), rel=WITHIN)
