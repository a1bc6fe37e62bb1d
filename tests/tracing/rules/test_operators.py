"""Operators of PyTorch's own list (`torch.testing`) that once stopped a run or whose memory was not counted."""

import pytest
import torch
from torch.nn import functional as F

from vramcast.catalogue.gpus import load_gpu
from vramcast.errors import InvalidSpec
from vramcast.tracing.session import Session


@pytest.fixture
def session():
    found = Session(load_gpu("a100-sxm-80gb"))
    with found.active():
        yield found


def data(*size, dtype=torch.float32, grad=False):
    """A tensor of the card too large for its values to be known."""
    return torch.empty((1024, *size), dtype=dtype, device="cuda", requires_grad=grad)


def taken(session, step):
    first = len(session.device.tape.blocks)
    out = step()
    return out, [(block.name or block.operator, block.num_bytes) for block in session.device.tape.blocks[first:]]


def test_a_result_whose_size_depends_on_data_fills_its_out(session):
    out = torch.empty(0, dtype=torch.int64, device="cuda")
    assert torch.nonzero(data(80), out=out) is out
    assert out.shape == (1024 * 80, 2) and session.memory.of(out).block.num_bytes == 1024 * 80 * 2 * 8


def test_losses_made_in_an_empty_result_are_counted(session):
    loss = F.soft_margin_loss(data(80), data(80), reduction="none")
    assert session.memory.of(loss).block.num_bytes == 1024 * 80 * 4


@pytest.mark.parametrize("pos_weight", [None, 80])
def test_targets_of_binary_cross_entropy_get_gradients(session, pos_weight):
    x, target = data(80, grad=True), data(80, grad=True)
    weight = pos_weight and torch.ones(pos_weight, device="cuda")
    F.binary_cross_entropy_with_logits(x, target, pos_weight=weight).backward()
    assert x.grad.shape == target.grad.shape == x.shape
    only = data(80, grad=True)
    F.binary_cross_entropy_with_logits(data(80), only).backward()
    assert only.grad.shape == only.shape


@pytest.mark.parametrize("loss", [F.multi_margin_loss, F.multilabel_margin_loss])
def test_margin_losses_keep_one_loss_a_sample_for_a_while(session, loss):
    x = data(80, grad=True)
    target = torch.zeros(1024, 80 if loss is F.multilabel_margin_loss else 1, dtype=torch.int64, device="cuda")
    value, blocks = taken(session, lambda: loss(x, target.squeeze(-1)))
    assert ("loss of samples", 1024 * 4) in blocks and value.shape == ()
    value.backward()
    assert x.grad.shape == x.shape


def test_distances_of_pairs_take_a_gradient_of_every_pair_in_backward(session):
    x, y = data(8, grad=True), torch.empty(20, 8, device="cuda")
    distance = torch.cdist(x, y, p=1.0)
    assert distance.shape == (1024, 20)
    _, blocks = taken(session, distance.sum().backward)
    assert ("gradient of every pair", 20 * 1024 * 8 * 4) in blocks


def test_unpooling_is_contiguous_whatever_the_layout(session):
    x = torch.empty(4, 16, 32, 32, device="cuda").to(memory_format=torch.channels_last)
    pooled, places = F.max_pool2d(x, 2, return_indices=True)
    out, blocks = taken(session, lambda: F.max_unpool2d(pooled, places, 2))
    assert out.is_contiguous() and out.shape == x.shape
    assert [size for name, size in blocks if name == "contiguous copy"] == [4 * 16 * 16 * 16 * 4, 4 * 16 * 16 * 16 * 8]


def test_numbers_of_the_host_go_with_tensors_of_the_card(session):
    x = data(80)
    mask = x > 0
    assert x.masked_fill(mask, torch.tensor(1.5)).is_cuda
    assert x.masked_fill_(mask, torch.tensor(1.5)) is x


def test_least_squares_run_and_are_listed(session):
    out = torch.linalg.lstsq(data(30), data(2))
    assert out.solution.shape == (30, 2) and out.solution.stride() == (1, 1024)
    assert out.residuals.shape == (2,) and out.rank.shape == (0,)
    assert session.simulation.unseen["aten.linalg_lstsq"][0] == 1
    with pytest.raises(RuntimeError, match="other than `gels` is not supported on CUDA"):
        torch.linalg.lstsq(data(30), data(2), driver="gelsd")


def test_norms_of_nothing_give_nothing(session):
    weight = torch.ones(8, device="cuda", requires_grad=True)
    out = F.batch_norm(torch.empty(0, 8, device="cuda"), None, None, weight, training=True)
    assert out.shape == (0, 8)
    out.sum().backward()
    assert weight.grad.shape == (8,)


@pytest.mark.parametrize(("batch", "size", "addresses"), [(8, 64, []), (9, 64, [72, 72]), (2, 32, [16, 16])])
def test_many_or_small_triangles_are_solved_from_a_list_of_addresses(session, batch, size, addresses):
    triangles, sides = (torch.empty(batch, size, width, device="cuda") for width in (size, 300))
    out, blocks = taken(session, lambda: torch.linalg.solve_triangular(triangles, sides, upper=False))
    assert out.shape == sides.shape and out.mT.is_contiguous()
    assert [num for name, num in blocks if name.startswith("addresses")] == addresses
    assert not session.simulation.unseen


def test_one_triangle_for_many_sides_is_copied_for_each(session):
    triangle, sides = torch.empty(64, 64, device="cuda"), torch.empty(10, 64, 3, device="cuda")
    _, blocks = taken(session, lambda: torch.linalg.solve_triangular(triangle, sides, upper=True))
    assert ("matrix column by column", 10 * 64 * 64 * 4) in blocks


def test_lazy_modules_get_their_parameters_on_the_card(session):
    layer = torch.nn.LazyLinear(16).to("cuda")
    layer(data(64)).sum().backward()
    assert layer.weight.shape == layer.weight.grad.shape == (16, 64)
    assert session.memory.of(layer.weight).block.num_bytes == 16 * 64 * 4


def test_reflectors_of_a_matrix_lie_column_by_column(session):
    a, tau = torch.geqrf(data(30))
    assert a.shape == (1024, 30) and a.stride() == (1, 1024) and tau.shape == (30,)


def test_special_functions_and_copies_of_views_are_known(session):
    x = data(80)
    torch.special.airy_ai(x), torch.special.bessel_j0(x), torch.special.hermite_polynomial_h(x, 3)
    torch.transpose_copy(x, 0, 1), torch.unsqueeze_copy(x, 0), torch.count_nonzero(x), torch.ldexp(x, x)
    F.bilinear(data(8), data(8), torch.empty(4, 8, 8, device="cuda"))
    assert not session.simulation.unseen


def test_counting_what_is_not_zero_marks_every_element_first(session):
    _, blocks = taken(session, lambda: torch.count_nonzero(data(80), 0))
    assert ("aten.ne", 1024 * 80) in blocks


def test_pooling_of_integers_is_refused_as_on_a_card(session):
    with pytest.raises(NotImplementedError, match=r"not implemented for torch\.int64"):
        F.max_pool2d(data(4, 8, 8, dtype=torch.int64), 2)


def test_operators_without_a_kernel_on_cards_are_refused_as_there(session):
    with pytest.raises(NotImplementedError, match=r"'aten::histogram.bin_ct' with arguments from the 'CUDA' backend"):
        torch.histogram(data(80), 10)


def test_operators_that_torch_cannot_run_without_data_get_a_sentence(session):
    with pytest.raises(InvalidSpec, match=r"aten::_sparse_semi_structured_tile is not simulated.*register_fake"):
        torch._sparse_semi_structured_tile(data(80))


@pytest.mark.parametrize(("run", "words"), [
    (lambda: torch.mm(data(80), data(40)), r"mat1 and mat2 shapes cannot be multiplied \(1024x80 and 1024x40\)"),
    (lambda: data(80) + data(40), r"The size of tensor a \(80\) must match the size of tensor b \(40\)"),
    (lambda: torch.nn.Conv2d(3, 8, 3, device="cuda")(data(4, 8, 8)), "to have 3 channels, but got 4 channels instead"),
    (lambda: torch.nn.ConvTranspose2d(3, 8, 3, device="cuda")(data(4, 8, 8)), "Given transposed=1.* got 4 channels"),
    (lambda: torch.nn.LayerNorm(8, device="cuda")(data(3)), r"expected input with shape \[\*, 8\]"),
    (lambda: torch.nn.BatchNorm2d(8, device="cuda")(data(3, 4, 4)), "running_mean should contain 3 elements not 8"),
    (lambda: data(80)[data(40) > 0], r"mask \[1024, 40\] at index 1 does not match .* \[1024, 80\] at index 1"),
    (lambda: data(80).topk(90), "selected index k out of range"),
])
def test_wrong_shapes_are_refused_in_the_words_of_torch(session, run, words):
    with pytest.raises((RuntimeError, IndexError), match=words):
        run()


@pytest.mark.parametrize("name", ["logsumexp", "sum", "mean", "amax", "argmax", "cumsum", "softmax", "prod", "std"])
@pytest.mark.parametrize("dim", [0, -1])
def test_a_single_number_is_reduced_along_its_only_dimension(name, dim):
    with Session(load_gpu("h100-sxm-80gb")).active():
        assert getattr(torch, name)(torch.ones((), device="cuda"), dim).shape == ()
