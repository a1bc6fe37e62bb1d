"""What operators take on CUDA, rule by rule, and how rules are found."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from torch.nn import functional as F

from vramcast.catalogue.gpus import load_gpu
from vramcast.errors import InvalidSpec
from vramcast.tracing.rules.sorting import radix_sort_bytes, scan_bytes, segmented_sort_bytes, unique_by_key_bytes
from vramcast.tracing.session import Session
from vramcast.tracing.tape import Phase

# Operators of PyTorch's own list (`torch.testing`) that once stopped a run or whose memory was not counted.


def data(*size, dtype=torch.float32, grad=False):
    """A tensor of the card too large for its values to be known."""
    return torch.empty((1024, *size), dtype=dtype, device="cuda", requires_grad=grad)


def taken_by(running, step):
    first = len(running.device.tape.blocks)
    out = step()
    return out, [(block.name or block.operator, block.num_bytes) for block in running.device.tape.blocks[first:]]


def test_a_result_whose_size_depends_on_data_fills_its_out(running):
    out = torch.empty(0, dtype=torch.int64, device="cuda")
    assert torch.nonzero(data(80), out=out) is out
    assert out.shape == (1024 * 80, 2) and running.memory.of(out).block.num_bytes == 1024 * 80 * 2 * 8


def test_losses_made_in_an_empty_result_are_counted(running):
    loss = F.soft_margin_loss(data(80), data(80), reduction="none")
    assert running.memory.of(loss).block.num_bytes == 1024 * 80 * 4


@pytest.mark.parametrize("pos_weight", [None, 80])
def test_targets_of_binary_cross_entropy_get_gradients(running, pos_weight):
    x, target = data(80, grad=True), data(80, grad=True)
    weight = pos_weight and torch.ones(pos_weight, device="cuda")
    F.binary_cross_entropy_with_logits(x, target, pos_weight=weight).backward()
    assert x.grad.shape == target.grad.shape == x.shape
    only = data(80, grad=True)
    F.binary_cross_entropy_with_logits(data(80), only).backward()
    assert only.grad.shape == only.shape


@pytest.mark.parametrize("loss", [F.multi_margin_loss, F.multilabel_margin_loss])
def test_margin_losses_keep_one_loss_a_sample_for_a_while(running, loss):
    x = data(80, grad=True)
    target = torch.zeros(1024, 80 if loss is F.multilabel_margin_loss else 1, dtype=torch.int64, device="cuda")
    value, blocks = taken_by(running, lambda: loss(x, target.squeeze(-1)))
    assert ("loss of samples", 1024 * 4) in blocks and value.shape == ()
    value.backward()
    assert x.grad.shape == x.shape


def test_distances_of_pairs_take_a_gradient_of_every_pair_in_backward(running):
    x, y = data(8, grad=True), torch.empty(20, 8, device="cuda")
    distance = torch.cdist(x, y, p=1.0)
    assert distance.shape == (1024, 20)
    _, blocks = taken_by(running, distance.sum().backward)
    assert ("gradient of every pair", 20 * 1024 * 8 * 4) in blocks


def test_unpooling_is_contiguous_whatever_the_layout(running):
    x = torch.empty(4, 16, 32, 32, device="cuda").to(memory_format=torch.channels_last)
    pooled, places = F.max_pool2d(x, 2, return_indices=True)
    out, blocks = taken_by(running, lambda: F.max_unpool2d(pooled, places, 2))
    assert out.is_contiguous() and out.shape == x.shape
    assert [size for name, size in blocks if name == "contiguous copy"] == [4 * 16 * 16 * 16 * 4, 4 * 16 * 16 * 16 * 8]


def test_numbers_of_the_host_go_with_tensors_of_the_card(running):
    x = data(80)
    mask = x > 0
    assert x.masked_fill(mask, torch.tensor(1.5)).is_cuda
    assert x.masked_fill_(mask, torch.tensor(1.5)) is x


def test_least_squares_run_and_are_listed(running):
    out = torch.linalg.lstsq(data(30), data(2))
    assert out.solution.shape == (30, 2) and out.solution.stride() == (1, 1024)
    assert out.residuals.shape == (2,) and out.rank.shape == (0,)
    assert running.simulation.unseen["aten.linalg_lstsq"][0] == 1
    with pytest.raises(RuntimeError, match="other than `gels` is not supported on CUDA"):
        torch.linalg.lstsq(data(30), data(2), driver="gelsd")


def test_norms_of_nothing_give_nothing(running):
    weight = torch.ones(8, device="cuda", requires_grad=True)
    out = F.batch_norm(torch.empty(0, 8, device="cuda"), None, None, weight, training=True)
    assert out.shape == (0, 8)
    out.sum().backward()
    assert weight.grad.shape == (8,)


@pytest.mark.parametrize(("batch", "size", "addresses"), [(8, 64, []), (9, 64, [72, 72]), (2, 32, [16, 16])])
def test_many_or_small_triangles_are_solved_from_a_list_of_addresses(running, batch, size, addresses):
    triangles, sides = (torch.empty(batch, size, width, device="cuda") for width in (size, 300))
    out, blocks = taken_by(running, lambda: torch.linalg.solve_triangular(triangles, sides, upper=False))
    assert out.shape == sides.shape and out.mT.is_contiguous()
    assert [num for name, num in blocks if name.startswith("addresses")] == addresses
    assert not running.simulation.unseen


def test_one_triangle_for_many_sides_is_copied_for_each(running):
    triangle, sides = torch.empty(64, 64, device="cuda"), torch.empty(10, 64, 3, device="cuda")
    _, blocks = taken_by(running, lambda: torch.linalg.solve_triangular(triangle, sides, upper=True))
    assert ("matrix column by column", 10 * 64 * 64 * 4) in blocks


def test_lazy_modules_get_their_parameters_on_the_card(running):
    layer = torch.nn.LazyLinear(16).to("cuda")
    layer(data(64)).sum().backward()
    assert layer.weight.shape == layer.weight.grad.shape == (16, 64)
    assert running.memory.of(layer.weight).block.num_bytes == 16 * 64 * 4


def test_reflectors_of_a_matrix_lie_column_by_column(running):
    a, tau = torch.geqrf(data(30))
    assert a.shape == (1024, 30) and a.stride() == (1, 1024) and tau.shape == (30,)


def test_special_functions_and_copies_of_views_are_known(running):
    x = data(80)
    torch.special.airy_ai(x), torch.special.bessel_j0(x), torch.special.hermite_polynomial_h(x, 3)
    torch.transpose_copy(x, 0, 1), torch.unsqueeze_copy(x, 0), torch.count_nonzero(x), torch.ldexp(x, x)
    F.bilinear(data(8), data(8), torch.empty(4, 8, 8, device="cuda"))
    assert not running.simulation.unseen


def test_counting_what_is_not_zero_marks_every_element_first(running):
    _, blocks = taken_by(running, lambda: torch.count_nonzero(data(80), 0))
    assert ("aten.ne", 1024 * 80) in blocks


def test_pooling_of_integers_is_refused_as_on_a_card(running):
    with pytest.raises(NotImplementedError, match=r"not implemented for torch\.int64"):
        F.max_pool2d(data(4, 8, 8, dtype=torch.int64), 2)


def test_operators_without_a_kernel_on_cards_are_refused_as_there(running):
    with pytest.raises(NotImplementedError, match=r"'aten::histogram.bin_ct' with arguments from the 'CUDA' backend"):
        torch.histogram(data(80), 10)


def test_operators_that_torch_cannot_run_without_data_get_a_sentence(running):
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
def test_wrong_shapes_are_refused_in_the_words_of_torch(running, run, words):
    with pytest.raises((RuntimeError, IndexError), match=words):
        run()


@pytest.mark.parametrize("name", ["logsumexp", "sum", "mean", "amax", "argmax", "cumsum", "softmax", "prod", "std"])
@pytest.mark.parametrize("dim", [0, -1])
def test_a_single_number_is_reduced_along_its_only_dimension(name, dim):
    with Session(load_gpu("h100-sxm-80gb")).active():
        assert getattr(torch, name)(torch.ones((), device="cuda"), dim).shape == ()


# CUB's own answers, asked of version 3.0 for several cards.

@pytest.mark.parametrize(
    ("elements", "bits", "sm", "answer"),
    [(1000, 64, 80, 1), (1_000_000, 17, 80, 16_270_847), (1_000_000, 64, 80, 16_275_967), (4096, 17, 80, 71_167)],
)
def test_radix_sort_of_pairs(elements, bits, sm, answer):
    assert radix_sort_bytes(elements, key=8, value=8, bits=bits, sm=sm) == answer


@pytest.mark.parametrize(("answer", "own"), [
    (4351, lambda: scan_bytes(1_000_000, 4, 80, "float32")),
    (596_479, lambda: scan_bytes(100_000_000, 8, 90)),
    (18_943, lambda: scan_bytes(1_000_000, 8, 86)),
    (51_199, lambda: unique_by_key_bytes(1_000_000, 86)),
    (36_000_767, lambda: segmented_sort_bytes(3_000_001, key=4, value=8)),
])
def test_other_algorithms(answer, own):
    assert own() == answer


# Truth values as indices: coordinates beside the result, and sorted in backward.

ROWS, WIDTH = 4096, 64
COORDINATES = "coordinates of a mask"


def scratch(session, name=COORDINATES):
    return [block.num_bytes for block in session.device.tape.blocks if block.name == name]


@pytest.mark.parametrize("is_known", [True, False])
def test_rows_by_a_mask_take_their_coordinates_forward_and_backward(running, is_known):
    x = torch.randn(ROWS, WIDTH, device="cuda", requires_grad=True)
    mask = torch.ones(ROWS, dtype=torch.bool, device="cuda") if is_known else x.detach()[:, 0] > 0
    chosen = x[mask]
    assert scratch(running) == [8 * ROWS]
    chosen.sum().backward()
    assert scratch(running) == [8 * ROWS] * 2
    assert scratch(running, "order of indices") == [8 * ROWS]


def test_elements_by_a_mask_take_a_coordinate_a_dimension(running):
    x = torch.empty(ROWS, WIDTH, device="cuda").normal_()
    assert x[x > 0].shape == (ROWS * WIDTH,)
    assert scratch(running) == [8 * 2 * ROWS * WIDTH]


def test_filling_by_a_mask_takes_nothing(running):
    x = torch.randn(ROWS, WIDTH, device="cuda")
    x[x > 0] = 0.0
    assert scratch(running) == []


# Operators whose kernels on CUDA are chains of others take what these take.

COUNT = 4096


def test_rolling_windows_takes_a_result_for_every_dimension(taken):
    x = torch.randn(2, 8, 16, 16, device="cuda").permute(0, 2, 3, 1)
    size = 4 * 2 * 8 * 16 * 16
    assert taken(lambda: torch.roll(x, (-2, -2), (1, 2))) == [(size, "contiguous copy"), (size, ""), (size, "")]


def test_the_first_result_lives_beside_the_second(running):
    x = torch.randn(COUNT, 64, device="cuda")
    before = running.device.allocator.allocated_bytes
    y = torch.roll(x, (1, 1), (0, 1))
    assert running.device.allocator.peak_allocated_bytes == before + 2 * y.nbytes
    assert running.device.allocator.allocated_bytes == before + y.nbytes


@pytest.mark.parametrize("way", ["scatter_reduce", "index_reduce"])
def test_means_are_counted_beside_their_sums(taken, way):
    source, sums = torch.randn(COUNT, 8, device="cuda"), torch.zeros(64, 8, device="cuda")
    index = torch.zeros(COUNT, dtype=torch.long, device="cuda")
    index = index[:, None].expand(-1, 8) if way == "scatter_reduce" else index
    taken = taken(lambda: getattr(sums, way)(0, index, source, "mean"))
    assert sorted(taken) == sorted([
        (4 * 64 * 8, ""), (4 * COUNT * 8, "ones"), (4 * 64 * 8, "counts"), (64 * 8, "counts of zero"),
    ])


def test_few_values_are_looked_for_among_many_by_comparing_all(taken):
    ids, ends = torch.randint(0, 9, (COUNT,), device="cuda"), torch.tensor([1, 2, 3], device="cuda")
    assert taken(lambda: torch.isin(ids, ends)) == [(COUNT, ""), (3 * COUNT, "comparisons"), (COUNT, "any of them")]


def test_what_looking_for_many_values_takes_is_not_known(running):
    torch.isin(torch.randint(0, 9, (COUNT,), device="cuda"), torch.randint(0, 9, (COUNT,), device="cuda"))
    assert "aten.isin" in running.simulation.unseen


@pytest.mark.parametrize("kind", ["bartlett", "blackman", "hamming", "hann"])
def test_windows_are_known(running, kind):
    assert getattr(torch, f"{kind}_window")(400, device="cuda").shape == (400,)
    assert not running.simulation.unseen


# Another distribution registers a rule, as docs/trace-rules.md shows.

ROOT = Path(__file__).parents[3]
BLOCK = re.compile(r"^```(?P<kind>py|toml)\n(?P<code>.*?)^```$", re.M | re.S)


@pytest.fixture
def blocks():
    page = (ROOT / "docs" / "trace-rules.md").read_text(encoding="utf-8")
    return [match["code"] for match in BLOCK.finditer(page)]


def run(code, path):
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(map(str, (path, ROOT / "src")))}
    done = subprocess.run(
        [sys.executable, "-c", code], env=environment, capture_output=True, text=True, timeout=180, check=True
    )
    return done.stdout


def test_a_rule_of_an_installed_package_counts_and_without_it_only_the_output_does(blocks, tmp_path, capsys):
    rules, entry_point, example = blocks
    package, metadata = tmp_path / "my_kernels", tmp_path / "my_kernels-1.0.dist-info"
    package.mkdir()
    metadata.mkdir()
    (package / "__init__.py").write_text("")
    (package / "vramcast_rules.py").write_text(rules)
    (metadata / "METADATA").write_text("Metadata-Version: 2.1\nName: my-kernels\nVersion: 1.0\n")
    name = re.search(r'^my_kernels = "(.*)"$', entry_point, re.M)[1]
    (metadata / "entry_points.txt").write_text(f"[vramcast.rules]\nmy_kernels = {name}\n")
    assert run(example, tmp_path) == "16 MiB\n"
    exec(example, {})  # here, where it is not installed
    assert capsys.readouterr().out == "8 MiB\n"


# Backward allocates what it does on CUDA: gradients meet in place, formulas fill their own zeros.

def allocated_in_backward(loss_of):
    """The operators that allocated, in order, while the loss of a vector on the device ran back."""
    session = Session(load_gpu("a100-sxm-80gb"))
    with session.active():
        x = torch.ones(64, 64, device="cuda", requires_grad=True)
        doubled = x * 2
        loss = loss_of(doubled)
        loss.backward()
        blocks = session.device.tape.blocks
        return [block.operator.split(".")[1] for block in blocks if block.origin.phase is Phase.BACKWARD]


def test_a_gradient_that_only_the_engine_holds_is_added_to_in_place():
    assert "add" not in allocated_in_backward(lambda w: (w.exp() + w.sin()).sum())


def test_a_gradient_that_still_waits_elsewhere_is_not_overwritten():
    def loss_of(w):
        exponential, sine = w.exp(), w.sin()
        # The sum's gradient waits for w and for the exponential while that of the sine arrives at w.
        return ((w + exponential) * w.detach() + sine).sum()

    assert allocated_in_backward(loss_of).count("add") == 1


def test_an_expanded_gradient_is_not_added_to_in_place():
    assert allocated_in_backward(lambda w: (w + w.exp()).sum()).count("add") == 1


@pytest.mark.parametrize("loss_of", [
    lambda w: w.max(dim=-1)[0].sum(),
    lambda w: w.gather(-1, torch.zeros(64, 1, dtype=torch.int64, device="cuda")).sum(),
    lambda w: w.index_select(0, torch.zeros(4, dtype=torch.int64, device="cuda")).sum(),
    lambda w: w[torch.zeros(4, dtype=torch.int64, device="cuda")].sum(),
])
def test_what_was_picked_goes_back_into_one_new_tensor(loss_of):
    operators = allocated_in_backward(loss_of)
    assert {"scatter", "scatter_add", "index_add", "index_put"}.isdisjoint(operators)
    assert sum("zeros" in operator for operator in operators) == 1
