"""Apex: its compiled functions by their public signatures, and Apex itself where it is installed."""

from importlib.util import find_spec

import pytest
import torch

from vramcast.units import MIB

ROWS, WIDTH = 4096, 1024
NAME = "sums of the gradient of {}"


@pytest.fixture(autouse=True)
def apex(installed):
    """Apex as it is, or enough of it."""
    if find_spec("apex") is None:
        installed("apex")


IS_HERE = find_spec("apex") is not None


def bf16(*sizes):
    return torch.randn(*sizes, device="cuda", dtype=torch.bfloat16)


def test_a_layer_norm_keeps_two_fp32_statistics_a_row(taken):
    import fused_layer_norm_cuda as compiled

    x, weight, bias = bf16(ROWS, WIDTH), bf16(WIDTH), bf16(WIDTH)
    blocks = taken(lambda: compiled.forward_affine(x, (WIDTH,), weight, bias, 1e-5))
    assert blocks == [(8 * MIB, ""), (ROWS * 4, ""), (ROWS * 4, "")]


def test_backward_of_a_layer_norm_sums_in_sixteen_rows(taken):
    import fused_layer_norm_cuda as compiled

    x, weight, bias = bf16(ROWS, WIDTH), bf16(WIDTH), bf16(WIDTH)
    out, mean, deviation = compiled.forward_affine(x, (WIDTH,), weight, bias, 1e-5)
    sums = 16 * WIDTH * 4
    assert taken(lambda: compiled.backward_affine(out, mean, deviation, x, (WIDTH,), weight, bias, 1e-5, False)) == [
        (8 * MIB, ""), (WIDTH * 2, ""), (WIDTH * 2, ""), (sums, NAME.format("weight")), (sums, NAME.format("bias")),
    ]


def test_an_rms_norm_of_mixed_types_has_the_weights_type_and_one_statistic(taken):
    import fused_layer_norm_cuda as compiled

    x, weight = bf16(ROWS, WIDTH), torch.randn(WIDTH, device="cuda")
    blocks = taken(lambda: compiled.rms_forward_affine_mixed_dtypes(x, (WIDTH,), weight, 1e-5))
    assert blocks == [(16 * MIB, ""), (ROWS * 4, "")]


@pytest.mark.parametrize("name", ["multi_tensor_adam", "multi_tensor_sgd", "multi_tensor_scale"])
def test_an_update_allocates_nothing_and_leaves_values_unknown(running, name):
    import amp_C

    flag = torch.zeros(1, dtype=torch.int32, device="cuda")
    lists = [[torch.ones(4, device="cuda")] for _ in range(4)]
    before = torch.cuda.memory_allocated()
    getattr(amp_C, name)(65536, flag, lists, 1e-3)
    assert torch.cuda.max_memory_allocated() == before
    assert running.simulation.values.of(lists[0][0]) is None
    assert flag.item() == 0
    assert not [entry for entry in running.assumptions if "read" in entry.what]


def test_a_norm_of_each_tensor_needs_a_sum_a_chunk(taken):
    import amp_C

    flag = torch.zeros(1, dtype=torch.int32, device="cuda")
    tensors = [torch.randn(size, device="cuda") for size in (1000, 200_000)]
    blocks = taken(lambda: amp_C.multi_tensor_l2norm(65536, flag, [tensors], True))
    assert blocks == [(320 * 4, "sums of blocks"), (2 * 4 * 4, "sums of chunks"), (8, ""), (4, "")]


def test_cross_entropy_keeps_a_sum_a_row_and_its_backward_the_gradient_alone(taken):
    import xentropy_cuda

    logits = torch.randn(512, 32_000, device="cuda", dtype=torch.float16)
    labels = torch.zeros(512, dtype=torch.int64, device="cuda")

    def both():
        losses, sums = xentropy_cuda.forward(logits, labels, 0.1, True)
        return xentropy_cuda.backward(losses, logits, sums, labels, 0.1)

    assert taken(both) == [(2048, ""), (2048, ""), (512 * 32_000 * 2, "")]


def test_a_triangular_softmax_writes_its_gradient_in_place(taken):
    import scaled_upper_triang_masked_softmax_cuda as compiled

    scores = bf16(16, 512, 512)

    def both():
        out = compiled.forward(scores, 0.125)
        assert compiled.backward(scores, out, 0.125) is scores
        return out

    assert taken(both) == [(16 * 512 * 512 * 2, "")]


def test_a_softmax_tells_how_many_rows_a_block_takes(running):
    import scaled_masked_softmax_cuda as compiled

    assert [compiled.get_batch_per_block(1, keys, 1, 1) for keys in (16, 128, 2048)] == [16, 8, 4]


def test_rotary_embeddings_are_laid_out_by_batch_where_asked_for(taken):
    import fused_rotary_positional_embedding as compiled

    x, angles = bf16(128, 2, 8, 64), torch.randn(128, 1, 1, 64, device="cuda")

    def run():
        out = compiled.forward(x, angles, True)
        assert out.shape == x.shape
        assert out.transpose(0, 1).is_contiguous()
        return out

    assert taken(run) == [(128 * 2 * 8 * 64 * 2, "")]


def test_a_chain_of_dense_layers_keeps_what_every_layer_gave(taken):
    import mlp_cuda

    x = torch.randn(512, 64, device="cuda", dtype=torch.float16)
    weights = [torch.randn(*size, device="cuda", dtype=torch.float16) for size in ((128, 64), (32, 128))]
    biases = [torch.randn(size, device="cuda", dtype=torch.float16) for size in (128, 32)]
    torch.mm(x, weights[0].t())  # cuBLAS has its workspace
    blocks = taken(lambda: mlp_cuda.forward(True, 1, (x, *weights, *biases)))
    assert blocks == [(512 * 32 * 2, ""), (512 * 160 * 2, ""), (8 * MIB, "cublasLt workspace")]


@pytest.mark.skipif(not IS_HERE, reason="Apex is not installed")
def test_apex_itself_trains(running):
    from apex.normalization import FusedRMSNorm
    from apex.optimizers import FusedAdam

    model = torch.nn.Sequential(torch.nn.Linear(256, 256), FusedRMSNorm(256)).cuda()
    optimizer = FusedAdam(model.parameters())
    states = torch.cuda.memory_allocated()
    for _ in range(2):
        model(torch.randn(64, 256, device="cuda")).sum().backward()
        optimizer.step()
        optimizer.zero_grad()
    grown = torch.cuda.memory_allocated() - states
    assert grown >= 2 * 4 * (256 * 256 + 512)
    assert not running.simulation.unseen
