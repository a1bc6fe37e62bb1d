"""The traced peak on the host is what torch's own profiler sees of real runs on the CPU."""

import pytest

torch = pytest.importorskip("torch")

from torch import nn  # noqa: E402
from torch.nn import functional as F  # noqa: E402
from torch.utils.checkpoint import checkpoint  # noqa: E402

from tests.tracing._cpu_runs import WITHIN, onednn, real_peak, traced_peak  # noqa: E402


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


class Sequences(nn.Module):
    def __init__(self, kind, inputs, hidden, *, bidirectional=False, **options):
        super().__init__()
        self.recurrent = getattr(nn, kind)(inputs, hidden, batch_first=True, bidirectional=bidirectional, **options)
        self.head = nn.Linear(hidden * (2 if bidirectional else 1), 10)

    def forward(self, x):
        return self.head(self.recurrent(x)[0][:, -1])


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


def inference(make_model, make_batch):
    def run():
        model = make_model().eval()
        with torch.no_grad():
            return model, model(make_batch()[0])

    return run


def sequences(batch, steps, inputs):
    return lambda: (torch.randn(batch, steps, inputs), torch.randint(0, 10, (batch,)))


def recurrent(kind, inputs, hidden, *, batch=16, steps=20, learns=True, **options):
    def make():
        return Sequences(kind, inputs, hidden, **options)

    batches = sequences(batch, steps, inputs)
    return training(make, batches, torch.optim.Adam) if learns else inference(make, batches)


def momentum(parameters):
    return torch.optim.SGD(parameters, 0.1, momentum=0.9)


def averaged():
    """Weights beside which a copy follows, as `copy.deepcopy` makes it, counters of batches among them."""
    model = nn.Sequential(nn.Linear(64, 64), nn.BatchNorm1d(64), nn.ReLU())
    follower = torch.optim.swa_utils.AveragedModel(model)
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    for _ in range(2):
        optimizer.zero_grad()
        model(torch.randn(32, 64)).sum().backward()
        optimizer.step()
        follower.update_parameters(model)
    return model, follower, optimizer


RUNS = {
    "averaged weights": averaged,
    "perceptron, AdamW": training(perceptron, rows, torch.optim.AdamW),
    "perceptron, SGD": training(perceptron, rows, lambda parameters: torch.optim.SGD(parameters, 0.1)),
    "attention by hand": training(Language, tokens, momentum),
    "fused attention": training(lambda: Language(is_fused=True), tokens, torch.optim.AdamW),
    "checkpoints": training(lambda: Language(checkpoints=True), tokens, momentum),
    "accumulation": training(Language, tokens, momentum, accumulate=3),
}
def operator(function, *others):
    def run():
        x = torch.randn(256, 300, requires_grad=True)
        y = function(x, *(torch.randn(256, 300) for _ in range(others[0] if others else 0)))
        y.sum().backward()
        return x, y

    return run


OPERATORS = {
    "largest of rows": operator(lambda x: x.amax(1)),
    "SiLU": operator(F.silu),
    "Mish": operator(F.mish),
    "GELU": operator(F.gelu),
    "softmax": operator(lambda x: x.softmax(-1)),
    "layer norm": operator(lambda x: F.layer_norm(x, (300,))),
    "group norm": operator(lambda x: F.group_norm(x.view(256, 30, 10), 3)),
    "pooling": operator(lambda x: F.max_pool2d(x.view(1, 4, 64, 300), 2)),
    "upsampling": operator(lambda x: F.interpolate(x.view(1, 4, 64, 300), scale_factor=2.0)),
    "squared error": operator(F.mse_loss, 1),
    "smooth absolute error": operator(F.smooth_l1_loss, 1),
    "cross entropy of pairs": operator(lambda x, y: F.binary_cross_entropy(x.sigmoid(), y.sigmoid()), 1),
    "rolled windows": operator(lambda x: torch.roll(x.view(16, 16, 300), (3, 5), (0, 1))),
    "rolled": operator(lambda x: torch.roll(x.t(), 7) * torch.roll(x.t(), (1, 2), (1, 0))),
    "mean of scattered": operator(
        lambda x: torch.zeros(64, 300).scatter_reduce(
            0, torch.arange(256).remainder(64)[:, None].expand(-1, 300), x, "mean"
        )
    ),
    "mean of indexed": operator(
        lambda x: x.detach().new_zeros(64, 300).index_reduce_(0, torch.arange(256) % 64, x.detach(), "mean") * x[:64]
    ),
    "sorted in one row": operator(lambda x: x.view(-1).sort(stable=True)[0]),
    "sorted": operator(lambda x: x.sort(0)[0]),
    "quantile": operator(lambda x: x.quantile(0.9)),
    "mixed types": operator(lambda x: (x * torch.ones(256, 300, dtype=torch.bfloat16)).sum() * (x > 0).sum()),
    "quotient of integers": operator(lambda x: x * (torch.ones(256, 300, dtype=torch.int32) / torch.ones(300).int())),
}
def sparse(make_optimizer):
    def run():
        embedding = nn.Embedding(1000, 64, sparse=True)
        optimizer = make_optimizer(embedding.parameters())
        for _ in range(2):
            embedding(torch.arange(500)).pow(2).sum().backward()
            optimizer.step()
            optimizer.zero_grad()
        return embedding, optimizer

    return run


def bags():
    embedding = nn.EmbeddingBag(1000, 64, mode="sum", sparse=True)
    optimizer = torch.optim.SparseAdam(embedding.parameters())
    for _ in range(2):
        embedding(torch.arange(500), torch.arange(0, 500, 5)).pow(2).sum().backward()
        optimizer.step()
        optimizer.zero_grad()
    return embedding, optimizer


SPARSE = {
    "bags": bags,
    "SparseAdam": sparse(torch.optim.SparseAdam),
    "SGD": sparse(lambda parameters: torch.optim.SGD(parameters, 0.1)),
    "Adagrad": sparse(torch.optim.Adagrad),
}
def packed(kind, *, batch_first=False, bidirectional=False, pads=False):
    def run():
        module = getattr(nn, kind)(33, 47, batch_first=batch_first, bidirectional=bidirectional)
        x = torch.randn((6, 20, 33) if batch_first else (20, 6, 33), requires_grad=True)
        lengths = torch.tensor([20, 20, 13, 13, 7, 2])
        y, _ = module(nn.utils.rnn.pack_padded_sequence(x, lengths, batch_first=batch_first))
        y = nn.utils.rnn.pad_packed_sequence(y, batch_first=batch_first)[0] if pads else y.data
        y.pow(2).sum().backward()
        return module, x, y

    return run


PACKED = {
    "GRU": packed("GRU", batch_first=True, pads=True), "LSTM": packed("LSTM", bidirectional=True, pads=True),
    "GRU, both directions": packed("GRU", bidirectional=True), "LSTM, left packed": packed("LSTM", batch_first=True),
}
DEEP = {"num_layers": 2, "bidirectional": True}
STEPWISE = {
    **{kind: recurrent(kind, 24, 40, dropout=0.1, **DEEP) for kind in ("GRU", "RNN")},
    **{f"{kind}, no biases": recurrent(kind, 24, 40, bias=False) for kind in ("GRU", "RNN")},
    **{f"{kind}, inference": recurrent(kind, 24, 40, learns=False, **DEEP) for kind in ("GRU", "RNN")},
}
ONEDNN = {
    "one layer": recurrent("LSTM", 24, 40),
    "several layers, both directions": recurrent("LSTM", 24, 40, dropout=0.1, **DEEP),
    "no biases": recurrent("LSTM", 24, 40, bias=False),
    "one input, large batch": recurrent("LSTM", 1, 64, batch=130),
    "whole cache lines": recurrent("LSTM", 128, 64, batch=4),
    "inference": recurrent("LSTM", 24, 40, learns=False),
    "inference, both directions": recurrent("LSTM", 80, 40, learns=False, **DEEP),
    "inference, one sequence": recurrent("LSTM", 16, 64, batch=1, learns=False),
    "inference, one step": recurrent("LSTM", 64, 64, batch=1, steps=1, learns=False),
}


@pytest.mark.parametrize("name", RUNS)
def test_traced_peak_is_the_profilers(name):
    assert traced_peak(RUNS[name]) == pytest.approx(real_peak(RUNS[name]), rel=WITHIN)


@onednn
def test_traced_peak_of_convolutions_is_the_profilers(one_thread):
    run = training(convolutions, images, torch.optim.Adam)
    assert traced_peak(run) == pytest.approx(real_peak(run), rel=WITHIN)


@pytest.mark.parametrize("name", STEPWISE)
def test_traced_peak_of_networks_that_go_step_by_step_is_the_profilers(name):
    assert traced_peak(STEPWISE[name]) == pytest.approx(real_peak(STEPWISE[name]), rel=WITHIN)


@pytest.mark.parametrize("name", PACKED)
def test_traced_peak_of_packed_sequences_is_the_profilers(name):
    assert traced_peak(PACKED[name]) == pytest.approx(real_peak(PACKED[name]), rel=WITHIN)


@pytest.mark.parametrize("name", OPERATORS)
def test_traced_peak_of_single_operators_is_the_profilers(name):
    assert traced_peak(OPERATORS[name]) == pytest.approx(real_peak(OPERATORS[name]), rel=WITHIN)


@pytest.mark.filterwarnings("ignore:Sparse invariant checks")
@pytest.mark.parametrize("name", SPARSE)
def test_traced_peak_of_sparse_gradients_is_the_profilers(name):
    assert traced_peak(SPARSE[name]) == pytest.approx(real_peak(SPARSE[name]), rel=WITHIN)


@onednn
@pytest.mark.parametrize("name", ONEDNN)
def test_traced_peak_of_lstm_is_the_profilers(name, one_thread):
    assert traced_peak(ONEDNN[name]) == pytest.approx(real_peak(ONEDNN[name]), rel=WITHIN)
