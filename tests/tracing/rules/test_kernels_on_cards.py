"""What operators allocate on a card beyond their outputs, in the order they take it."""

from functools import partial

import pytest
import torch
from torch.nn import functional as F

from vramcast.catalogue.gpus import load_gpu
from vramcast.tracing.session import Session
from vramcast.units import MIB


def events(work, *, card="a100-sxm4-80gb"):
    """What `work` takes after its setup: (bytes, name), gives left out."""
    session = Session(load_gpu(card))
    with session.active():
        run = work()
        tape = session.device.tape
        start = len(tape.events)
        kept = run()
        taken = [tape.blocks[event - 1] for event in tape.events[start:] if event > 0]
        del kept
    return [(block.num_bytes, block.name) for block in taken]


def randn(*size, **options):
    return torch.randn(*size, device="cuda", **options)


@pytest.mark.parametrize(("card", "size"), [("a100-sxm4-80gb", 8_519_680), ("h100-sxm-80gb", 32 * MIB)])
def test_every_thread_has_a_workspace_of_cublas(card, size):
    def work():
        x, w = randn(64, 64, requires_grad=True), randn(64, 64, requires_grad=True)
        return lambda: (x @ w).sum().backward()

    assert [each for each, name in events(work, card=card) if name == "cuBLAS workspace"] == [size] * 2


def test_a_setting_of_the_environment_gives_the_size_of_the_workspace(monkeypatch):
    monkeypatch.setenv("CUBLAS_WORKSPACE_CONFIG", ":4096:8")

    def work():
        x = randn(64, 64)
        return lambda: x @ x

    assert (32 * MIB, "cuBLAS workspace") in events(work)


def test_an_expanded_gradient_is_copied_for_cublas(taken):
    x, w = randn(256, 128, requires_grad=True), randn(128, 64, requires_grad=True)
    y = x @ w
    copies = [size for size, name in taken(lambda: y.sum().backward()) if name == "contiguous operand"]
    assert copies == [256 * 64 * 4] * 2


def backward_of(function, *size):
    x = randn(*size, requires_grad=True)
    y, gradient = function(x), randn(*size)
    return partial(y.backward, gradient)


@pytest.mark.parametrize(("work", "sizes", "name"), [
    pytest.param(*row, id=fact) for fact, row in {
        "dropout makes its mask first": (lambda: partial(F.dropout, randn(1024, 1024), 0.1), [MIB, 4 * MIB], ""),
        "backward of softmax multiplies first": (
            lambda: backward_of(lambda x: torch.softmax(x, -1), 1024, 512), [2 * MIB, 2 * MIB], "gradient * result"
        ),
        "softmax reads fp16 as it is": (lambda: in_fp32(torch.float16), [4 * MIB], ""),
        "softmax reads a copy of bf16": (lambda: in_fp32(torch.bfloat16), [4 * MIB, 4 * MIB], ""),
        "backward of SiLU is one tensor": (lambda: backward_of(F.silu, 1024, 1024), [4 * MIB], ""),
        "norms of gradients take a number a chunk": (
            lambda: partial(torch._foreach_norm, [randn(1 << 20), randn(100)]), [2 * 16 * 4, 4, 4], "norms of chunks"
        ),
        "RMS norm is one operator": (
            lambda: partial(torch.nn.RMSNorm(1024, device="cuda"), randn(512, 1024)), [2 * MIB, 512 * 4], ""
        ),
    }.items()
])
def test_an_operator_takes_what_its_kernels_take(work, sizes, name):
    taken = events(work)
    assert [size for size, _ in taken] == sizes
    assert "".join(each for _, each in taken) == name


def in_fp32(dtype):
    return partial(torch.softmax, randn(1024, 1024, dtype=dtype), -1, dtype=torch.float32)


def test_a_bias_that_no_product_takes_is_added_in_place(taken):
    x = randn(8, 16, 32, 64).transpose(1, 2)
    layer = torch.nn.Linear(64, 128, device="cuda")
    with torch.no_grad():
        layer(x)  # the workspace
    assert [size for size, _ in taken(lambda: layer(x))] == [8 * 16 * 32 * 64 * 4, 8 * 16 * 32 * 128 * 4]


def test_long_rows_are_sorted_with_pairs_of_position_and_row():
    def work(width):
        def setup():
            x = randn(64, width)
            return lambda: torch.sort(x)

        return setup

    short, long = ({name: size for size, name in events(work(width))} for width in (4096, 8192))
    assert "positions and rows" not in short
    assert long["positions and rows"] == 64 * 8192 * 8


def test_what_was_read_is_not_listed_as_unknown(running):
    x = randn(64, 64)
    torch.logsumexp(x, -1), x.topk(3), x.cumsum(0), F.mse_loss(x, x), x.std(), x.argmax(-1), x.exp()
    assert not running.simulation.unseen


def test_operands_of_two_types_are_refused_in_the_words_of_torch(running):
    layer = torch.nn.Linear(8, 8, device="cuda").half()
    with pytest.raises(RuntimeError, match="mat1 and mat2 to have the same dtype, but got: float != c10::Half"):
        layer(randn(4, 8))


@pytest.mark.parametrize("loss", [F.mse_loss, F.smooth_l1_loss, F.binary_cross_entropy])
def test_the_elements_of_a_loss_stay_behind_its_scalar_as_on_the_cpu(loss):
    real = torch.rand(64, 32)
    with Session(load_gpu("a100-sxm4-80gb")).active():
        x = torch.rand(64, 32, device="cuda")
        before = torch.cuda.memory_allocated()
        kept = loss(x, x)
        assert torch.cuda.memory_allocated() - before == loss(real, real).untyped_storage().nbytes() == 64 * 32 * 4
        assert kept.shape == ()


@pytest.mark.parametrize("options", [{}, {"weight"}, {"pos_weight"}, {"weight", "pos_weight"}])
def test_backward_of_a_loss_of_logits_writes_into_its_sigmoid(taken, options):
    x, target = randn(512, 512, requires_grad=True), randn(512, 512)
    given = {name: randn(512) for name in options}
    loss = F.binary_cross_entropy_with_logits(x, target, **given)
    large = [size for size, _ in taken(lambda: loss.backward()) if size == MIB]
    assert len(large) == (3 if "pos_weight" in options else 1)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
def test_an_encoder_in_eval_mode_takes_the_fast_path(dtype):
    session = Session(load_gpu("a100-sxm4-80gb"))
    with session.active(), torch.no_grad():
        layer = torch.nn.TransformerEncoderLayer(256, 4, 1024, batch_first=True, device="cuda", dtype=dtype)
        encoder = torch.nn.TransformerEncoder(layer, 2).eval()
        x, padding = randn(2, 128, 256, dtype=dtype), torch.zeros(2, 128, dtype=torch.bool, device="cuda")
        start = len(session.device.tape.blocks)
        assert encoder(x).shape == x.shape
        fused = {block.operator for block in session.device.tape.blocks[start:]}
        assert encoder(x, src_key_padding_mask=padding).shape == x.shape
    kernel = "flash" if dtype is torch.float16 else "efficient"
    assert f"aten._scaled_dot_product_{kernel}_attention" in fused and "aten._addmm_activation" in fused
    assert not session.simulation.unseen
    assert any("padding" in assumption.what for assumption in session.assumptions)


def test_grouped_products_read_a_table_of_their_groups():
    def work(dtype):
        def setup():
            a, b = randn(64, 32, dtype=dtype), randn(5, 32, 16, dtype=dtype)
            ends = torch.tensor([16, 32, 48, 60, 64], device="cuda", dtype=torch.int32)
            return lambda: torch._grouped_mm(a, b, offs=ends)

        return setup

    table = (6 * 3 * 8 + 5 * (12 + 24), "grouped arguments")
    assert events(work(torch.bfloat16), card="h100-sxm-80gb") == [(64 * 16 * 2, ""), table]
    assert table not in events(work(torch.bfloat16))


def test_a_script_sets_reads_and_clears_the_workspaces_of_cublas():
    session = Session(load_gpu("b200-180gb"))
    with session.active():
        x = randn(64, 64)
        assert torch.backends.cuda.cublas_workspace_size() == 32 * MIB
        torch.backends.cuda.cublas_workspace_size(MIB)
        x @ x
        held = torch.cuda.memory_allocated()
        torch._C._cuda_clearCublasWorkspaces()
        assert held - torch.cuda.memory_allocated() == MIB
