"""The traced peak on the host against torch's profiler: operators, losses, layers, models of libraries."""

import pytest

torch = pytest.importorskip("torch")

from torch import nn  # noqa: E402
from torch.nn import functional as F  # noqa: E402

from tests.tracing._cpu_runs import WITHIN, module, operator, real_peak, traced_peak  # noqa: E402

IMAGE = 4, 16, 32, 32
HEADS = 2, 4, 128, 32


def classes(count, rows=256):
    return torch.randint(0, count, (rows,))


REDUCTIONS = {
    **{f"{name} of all": operator(lambda x, name=name: getattr(torch, name)(x)) for name in (
        "amax", "max", "mean", "median", "min", "nanmedian", "norm", "prod", "std", "sum", "var",
    )},
    **{f"{name} along {dim}": operator(lambda x, name=name, dim=dim: getattr(torch, name)(x, dim=dim)) for name in (
        "amax", "amin", "cummax", "cumprod", "cumsum", "logcumsumexp", "logsumexp", "max", "median", "min", "mode",
        "nanmedian", "prod", "softmax", "std", "sum",
    ) for dim in (0, 1)},
    "kth value": operator(lambda x: x.kthvalue(5, 1)),
    "sorted": operator(lambda x: x.sort(1)),
    "largest": operator(lambda x: x.topk(7, 1)),
    "products of powers": operator(lambda x: torch.linalg.vander(x), (64,)),
}
PRODUCTS = {
    "distances": operator(torch.cdist, (64, 100), (80, 100)),
    "einsum": operator(lambda a, b: torch.einsum("bhqd,bkhd->bhqk", a, b), (2, 4, 32, 16), (2, 40, 4, 16)),
    "solve": operator(torch.linalg.solve, (64, 64), (64, 30)),
    "inverse": operator(torch.linalg.inv, (64, 64)),
    "transform": operator(lambda x: torch.fft.rfft2(x).abs(), (32, 64, 60)),
}
FACTORS = {
    "cholesky": operator(lambda x: torch.linalg.cholesky(x @ x.mT + torch.eye(64)), (64, 64)),
    "pseudo-inverse": operator(torch.linalg.pinv, (64, 64)),
    "lu": operator(lambda x: torch.linalg.lu(x)[2], (40, 80)),
    "lu packed": operator(torch.linalg.lu_factor, (4, 64, 64)),
    "eigenvalues": operator(lambda x: torch.linalg.eigvalsh(x.detach() + x.detach().mT) + x, (128, 128)),
    "eigenvectors": operator(lambda x: torch.linalg.eigh(x + x.mT), (64, 64)),
    "exponential": operator(torch.linalg.matrix_exp, (64, 64)),
    "exponentials": operator(torch.linalg.matrix_exp, (4, 32, 32)),
    "singular vectors": operator(lambda x: torch.linalg.svd(x, full_matrices=False)[0], (80, 40)),
}
ATTENTION = {
    "causal": operator(lambda *qkv: F.scaled_dot_product_attention(*qkv, is_causal=True), HEADS, HEADS, HEADS),
    "masked": operator(lambda *qkv: F.scaled_dot_product_attention(
        *qkv, attn_mask=torch.ones(128, 128, dtype=torch.bool),
    ), HEADS, HEADS, HEADS),
    "mask that learns": operator(F.scaled_dot_product_attention, HEADS, HEADS, HEADS, (128, 128)),
    "dropout": operator(lambda *qkv: F.scaled_dot_product_attention(*qkv, dropout_p=0.1), HEADS, HEADS, HEADS),
    "groups of heads": operator(
        lambda *qkv: F.scaled_dot_product_attention(*qkv, enable_gqa=True), HEADS, (2, 2, 128, 32), (2, 2, 128, 32)
    ),
    "others' keys": operator(F.scaled_dot_product_attention, (2, 4, 64, 32), (2, 4, 200, 32), (2, 4, 200, 32)),
    "long": operator(
        lambda *qkv: F.scaled_dot_product_attention(*qkv, is_causal=True), *[(1, 2, 800, 32)] * 3
    ),
}
INDICES = {
    "mask": operator(lambda x: x[x.detach() < 9], IMAGE),
    "masked select": operator(lambda x: x.masked_select(torch.ones(32, dtype=torch.bool)), IMAGE),
    "distinct": operator(lambda x: x * torch.arange(60_000).unique().sum(), IMAGE),
    "columns and back": operator(lambda x: F.fold(F.unfold(x, 3), (32, 32), 3), IMAGE),
    "scattered": operator(
        lambda x: torch.zeros(IMAGE).scatter_add(1, torch.zeros(IMAGE, dtype=torch.long), x), IMAGE
    ),
    **{f"scattered, {how}": operator(
        lambda x, y, how=how: x.scatter_reduce(1, torch.zeros(IMAGE, dtype=torch.long), y, how), IMAGE, IMAGE
    ) for how in ("amax", "mean", "prod")},
    "pool of channels last": operator(
        lambda x: F.max_pool2d(x.to(memory_format=torch.channels_last), 2), IMAGE
    ),
}


def bag(mode, rows=100):
    def run():
        embedding = nn.EmbeddingBag(rows, 64, mode=mode)
        embedding(torch.randint(0, rows, (300, 50))).square().sum().backward()
        return embedding

    return run


BAGS = {mode: bag(mode) for mode in ("max", "mean", "sum")}


def loss(function, *shape):
    def run():
        x = torch.randn(*shape or (256, 300), requires_grad=True)
        function(x).sum().backward()
        return x

    return run


LOSSES = {
    "weights of positives": loss(lambda x: F.binary_cross_entropy_with_logits(
        x, torch.rand(256, 300), pos_weight=torch.rand(300),
    )),
    "binary": loss(lambda x: F.binary_cross_entropy_with_logits(x, torch.rand(256, 300))),
    "margins": loss(lambda x: F.multi_margin_loss(x, classes(300))),
    "labels' margins": loss(lambda x: F.multilabel_margin_loss(x, torch.randint(0, 300, (256, 300)))),
    "smoothed": loss(lambda x: F.cross_entropy(x, classes(300), label_smoothing=0.1)),
    "sequences": loss(lambda x: F.ctc_loss(
        x.log_softmax(2), torch.randint(1, 300, (4, 20)), torch.full((4,), 64), torch.full((4,), 20),
    ), 64, 4, 300),
    "images": loss(lambda x: F.cross_entropy(x, torch.randint(0, 21, (4, 32, 32))), 4, 21, 32, 32),
}
LAYERS = {
    "normed in evaluation": module(lambda: nn.InstanceNorm1d(32), (8, 32, 280), learns=False),
    "attention": module(lambda: nn.MultiheadAttention(64, 4), *[(50, 4, 64)] * 3),
    "encoder": module(lambda: nn.TransformerEncoderLayer(64, 4, 128, batch_first=True), (4, 50, 64)),
    "encoder in evaluation": module(
        lambda: nn.TransformerEncoderLayer(64, 4, 128, batch_first=True), (4, 50, 64), learns=False
    ),
    "transformer": module(lambda: nn.Transformer(64, 4, 1, 1, 128, batch_first=True), (4, 50, 64), (4, 30, 64)),
}


def normed(norm):
    return lambda: nn.Sequential(nn.PReLU(), norm(), nn.ReLU())


MIXED = {
    "convolution": module(lambda: nn.Conv2d(32, 64, 3, padding=1), (8, 32, 28, 28), amp=True),
    "groups normed": module(normed(lambda: nn.GroupNorm(4, 32)), (8, 32, 28, 28), amp=True),
    "batches normed": module(normed(lambda: nn.BatchNorm2d(32)), (8, 32, 28, 28), amp=True),
    "layers normed": module(normed(lambda: nn.LayerNorm(128)), (8, 64, 128), amp=True),
    "encoder": module(lambda: nn.TransformerEncoderLayer(64, 4, 128, batch_first=True), (4, 50, 64), amp=True),
}
OPTIMIZERS = {
    "Adadelta": {}, "Adafactor": {}, "Adagrad": {}, "Adam": {"amsgrad": True}, "Adamax": {}, "AdamW": {"fused": True},
    "ASGD": {}, "NAdam": {}, "RAdam": {"foreach": True}, "RMSprop": {"momentum": 0.9, "centered": True}, "Rprop": {},
    "SGD": {"nesterov": True, "momentum": 0.9},
}


def stepping(name):
    def run():
        model = nn.Sequential(nn.Linear(96, 128), nn.ReLU(), nn.Linear(128, 160), nn.ReLU(), nn.Linear(160, 10))
        optimizer = getattr(torch.optim, name)(model.parameters(), lr=0.01, **OPTIMIZERS[name])
        for _ in range(3):
            optimizer.zero_grad()
            model(torch.randn(16, 96)).square().mean().backward()
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
        return model, optimizer

    return run


SMALL = {"hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 2, "num_attention_heads": 4}


def language_model(kind, **options):
    def run():
        transformers = pytest.importorskip("transformers")
        config = getattr(transformers, f"{kind}Config")(**SMALL, vocab_size=500, **options)
        model = getattr(transformers, f"{kind}ForCausalLM")(config)
        optimizer = torch.optim.AdamW(model.parameters())
        for _ in range(2):
            ids = torch.randint(0, 500, (2, 48))
            model(input_ids=ids, labels=ids).loss.backward()
            optimizer.step()
            optimizer.zero_grad()
        return model, optimizer

    return run


MODELS = {
    "llama": language_model("Llama", num_key_value_heads=2),
    "mixtral": language_model("Mixtral", num_key_value_heads=2, num_local_experts=4),
    "gpt-neox": language_model("GPTNeoX"),
}
RUNS = {
    f"{group}: {name}": run
    for group, runs in (
        ("reduced", REDUCTIONS), ("products", PRODUCTS), ("factors", FACTORS), ("attention", ATTENTION),
        ("indices", INDICES),
        ("bags", BAGS), ("losses", LOSSES), ("layers", LAYERS), ("mixed precision", MIXED),
        ("optimizers", {name: stepping(name) for name in OPTIMIZERS}), ("models", MODELS),
    )
    for name, run in runs.items()
}


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", RUNS)
def test_traced_peak_is_the_profilers(name, one_thread):
    assert traced_peak(RUNS[name]) == pytest.approx(real_peak(RUNS[name]), rel=WITHIN)
