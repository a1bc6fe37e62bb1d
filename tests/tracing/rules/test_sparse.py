"""Sparse gradients on a simulated card: blocks of indices and values, sums of equal rows, a sentence for the rest."""

import pytest
import torch
from torch import nn

from vramcast.errors import InvalidSpec
from vramcast.tracing.memory import sparse_parts
from vramcast.tracing.rules.indexing import DISTINCT

pytestmark = pytest.mark.filterwarnings("ignore:Sparse invariant checks", "ignore:Sparse CSR tensor")
ROWS, WIDTH, COUNT = 1000, 64, 128


def embedded(kind=nn.Embedding, **options):
    module = kind(ROWS, WIDTH, sparse=True, **options).cuda()
    module(torch.randint(0, ROWS, (8, COUNT // 8), device="cuda")).pow(2).sum().backward()
    return module


def made(running, since):
    tape = running.device.tape
    return [tape.blocks[event - 1].num_bytes for event in tape.events[since:] if event > 0]


def test_a_gradient_is_its_indices_and_values(running):
    gradient = embedded().weight.grad
    assert (gradient.layout, gradient._nnz(), gradient.device.type) == (torch.sparse_coo, COUNT, "cuda")
    assert gradient._values().size() == (COUNT, WIDTH)


def test_a_gradient_reaches_its_parameter_without_a_copy(running):
    embedded()
    sizes = made(running, 0)
    assert sizes.count(COUNT * WIDTH * 4) == 5  # output, square, and three steps of its gradient


def test_a_second_backward_puts_the_rows_behind_the_first(running):
    module = embedded()
    module(torch.randint(0, ROWS, (8, COUNT // 8), device="cuda")).pow(2).sum().backward()
    assert module.weight.grad._nnz() == 2 * COUNT


def test_sums_of_equal_rows_take_the_most_that_there_may_be_and_say_so(running):
    gradient = embedded().weight.grad
    since = len(running.device.tape.events)
    summed = gradient.coalesce()
    assert (summed.is_coalesced(), summed._nnz()) == (True, COUNT)
    assert made(running, since)[:3] == [COUNT * 8] * 3  # indices, their order, where rows start
    assert DISTINCT in [assumption.what for assumption in running.assumptions]


def test_no_more_rows_are_distinct_than_there_are(running):
    module = nn.Embedding(10, WIDTH, sparse=True).cuda()
    module(torch.randint(0, 10, (COUNT,), device="cuda")).pow(2).sum().backward()
    assert module.weight.grad.coalesce()._nnz() == 10


@pytest.mark.parametrize("optimizer", [torch.optim.SGD, torch.optim.SparseAdam, torch.optim.Adagrad])
@pytest.mark.parametrize("kind", [nn.Embedding, nn.EmbeddingBag])
def test_optimizers_that_take_sparse_gradients_take_a_step(running, optimizer, kind):
    module = embedded(kind)
    optimizer(module.parameters(), lr=0.1).step()
    assert not running.simulation.unseen


def test_an_operator_without_a_sparse_form_is_named(running):
    gradient = embedded().weight.grad
    with pytest.raises(InvalidSpec, match=r"aten::pow.* of sparse tensors is not simulated; make the gradients dense"):
        gradient.pow(2)


def test_other_sparse_layouts_are_named():
    x = torch.eye(4).to_sparse_csr()
    with pytest.raises(InvalidSpec, match=r"layout torch.sparse_csr are not simulated"):
        sparse_parts(x)


def test_bags_give_their_four_tensors_as_the_card_makes_them(running):
    bag = nn.EmbeddingBag(ROWS, WIDTH).cuda()
    ids = torch.randint(0, ROWS, (8, 16), device="cuda")
    since = len(running.device.tape.events)
    out = bag(ids)
    offsets = 8 * 8
    assert made(running, since)[-3:] == [offsets, COUNT * 8, 8 * WIDTH * 4]  # sizes, bag of every index, sums
    out.sum().backward()
    assert not running.simulation.unseen


def test_a_histogram_without_bounds_looks_for_them(running):
    x = torch.empty(1 << 20, device="cuda")
    since = len(running.device.tape.events)
    torch.histc(x, bins=50)
    assert made(running, since)[0] == 50 * 4
    assert len(made(running, since)) > len([50])
    since = len(running.device.tape.events)
    torch.histc(x, bins=50, min=0, max=1)
    assert made(running, since) == [50 * 4]
