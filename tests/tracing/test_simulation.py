"""The simulated card: what it holds, values that nobody computes, kernels, layers, draws."""

import threading
from dataclasses import dataclass

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from vramcast.catalogue.gpus import load_gpu
from vramcast.errors import Unsupported
from vramcast.question.tracing import build_trace
from vramcast.tracing import values
from vramcast.tracing.inputs import first_tensor
from vramcast.tracing.layers import traced_layers
from vramcast.tracing.result import categorise
from vramcast.tracing.session import Session
from vramcast.tracing.tape import Phase, highest, live_after, play
from vramcast.tracing.values import LARGEST_KNOWN_INTEGERS

# A simulated device behaves as torch's own does, and is gone afterwards.

MIB = 1 << 20


def everything_of_torch():
    """Attributes of what is patched; modules that torch loads late may join them."""
    owners = torch, torch._C, torch.Tensor, torch.UntypedStorage, torch.cuda, torch.utils._device.DeviceContext
    return {(owner, name): id(value) for owner in owners for name, value in vars(owner).items()}


def train(model, make_batch, *, steps=2, **autocast):
    optimizer = torch.optim.AdamW(model.parameters())
    for _ in range(steps):
        x, y = make_batch()
        with torch.autocast("cuda", **autocast):
            loss = F.cross_entropy(model(x), y)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        del loss, x, y


def two_layers():
    return nn.Sequential(nn.Linear(1024, 2048, device="cuda"), nn.GELU(), nn.Linear(2048, 512, device="cuda"))


def batch():
    return torch.randn(64, 1024, device="cuda"), torch.randint(0, 512, (64,), device="cuda")


def test_torch_is_as_it_was_after_a_simulation(session):
    before = everything_of_torch()
    with session.active():
        train(two_layers(), batch, dtype=torch.bfloat16)
    after = everything_of_torch()
    assert {name: after.get(name) for name in before} == before
    assert torch.empty(1, device="meta").device.type == "meta"
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert F.linear(torch.ones(2, 2), torch.ones(2, 2)).dtype is torch.bfloat16


def test_torch_is_as_it_was_after_an_error(session):
    before = everything_of_torch()
    with pytest.raises(RuntimeError, match="mat1 and mat2 shapes cannot be multiplied"), session.active():
        two_layers()(torch.randn(3, 5, device="cuda"))
    after = everything_of_torch()
    assert {name: after.get(name) for name in before} == before


def test_a_tensor_is_freed_when_its_last_view_is(running):
    tensor = torch.empty(1024, 1024, device="cuda")
    view = tensor[3:5].t()
    del tensor
    assert running.device.allocator.allocated_bytes == 4 * MIB
    del view
    assert running.device.allocator.allocated_bytes == 0


def test_tensors_say_where_they_live(running):
    there = torch.empty(3, device="cuda")
    assert (there.device, there.is_cuda, there.is_meta) == (torch.device("cuda:0"), True, False)
    assert there.new_empty(2).device == there.device
    assert torch.empty(3).device == torch.device("cpu")
    assert (torch.empty(3, device="meta") + 1).device == torch.device("meta")


def test_tensors_asked_to_have_no_data_are_not_simulated(running):
    with torch.device("meta"):
        layer = nn.Linear(3, 3)
    assert layer.weight.device.type == torch.empty(2, device="meta").device.type == "meta"
    assert torch.empty(2, device="cuda").to("meta").device.type == "meta"
    layer.to_empty(device="cuda")
    assert layer.weight.device.type == "cuda"


def test_large_host_tensors_have_no_data(running):
    huge = torch.randn(1 << 20, 1 << 12)  # 16 GiB
    assert huge.device == torch.device("cpu")
    assert huge[:4].cuda().device == torch.device("cuda:0")
    assert running.device.tape.blocks[-1].num_bytes == 4 * (1 << 12) * 4


def test_tensors_of_two_devices_do_not_mix(running):
    there = torch.empty(3000, 1000, device="cuda")
    for here in (torch.ones(1000), torch.empty(3000, 1000)):
        with pytest.raises(RuntimeError, match="at least two devices, cuda:0 and cpu"):
            there + here
    assert (there + torch.tensor(1.0)).device == there.device


def test_tensors_of_an_earlier_simulation_do_not_pass_for_those_of_the_card(session):
    with Session(load_gpu("a100-sxm-80gb")).active():
        old = torch.randn(8, 8, device="cuda")
    with session.active(), pytest.raises(RuntimeError, match="at least two devices, cuda:0 and meta"):
        torch.randn(8, 8, device="cuda") @ old


def test_what_an_unknown_value_was_written_to_is_not_known_any_more(running):
    total = torch.zeros((), device="cuda")
    assert running.simulation.values.of(total) is not None
    total += torch.empty((), device="cuda").normal_()
    assert running.simulation.values.of(total) is None


def test_weights_gradients_and_states_of_adamw_are_told_apart(running):
    model = two_layers()
    train(model, batch)
    weights = sum(parameter.numel() * 4 for parameter in model.parameters())
    tape = running.device.tape
    played = play(tape)
    start, end = (mark.position for mark in tape.marks)
    categories = categorise(tape)
    at_peak = {}
    for block in live_after(tape, highest(played, start, end).event):
        at_peak[categories[block.index]] = at_peak.get(categories[block.index], 0) + block.num_bytes
    assert at_peak["weights"] == weights
    assert at_peak["gradients"] == weights
    assert 2 * weights <= at_peak["optimizer"] <= 2 * weights + 16 * 4
    assert {block.name for block in tape.blocks if categories[block.index] == "gradients"} == {
        "0.weight", "0.bias", "2.weight", "2.bias",
    }


def test_an_optimizer_a_parameter_within_backward_is_one_step(session):
    def one() -> None:
        model(batch()[0]).square().mean().backward()

    with session.active():
        model = two_layers()
        optimizers = {parameter: torch.optim.SGD([parameter], 0.1) for parameter in model.parameters()}

        def update(parameter):
            optimizers[parameter].step()
            optimizers[parameter].zero_grad()

        for parameter in model.parameters():
            parameter.register_post_accumulate_grad_hook(update)
        one()
        end_of_first = len(session.device.tape.events)
        one()
    ends = session.device.tape.step_ends()
    assert len(session.device.tape.marks) == 8 and len(ends) == 2
    assert ends[0] <= end_of_first < ends[1]


def bytes_by_category(session):
    categories = categorise(session.device.tape)
    sums: dict[str, int] = {}
    for block in session.device.tape.blocks:
        if block.died is None:
            sums[categories[block.index]] = sums.get(categories[block.index], 0) + block.num_bytes
    return sums


def test_gradients_are_told_where_no_optimizer_follows(running):
    model = two_layers()
    model(batch()[0]).square().mean().backward()
    sums = bytes_by_category(running)
    assert sums["gradients"] == sums["weights"] == sum(parameter.numel() * 4 for parameter in model.parameters())


def test_backward_is_put_down_to_the_module_of_its_forward(running):
    train(two_layers(), batch, steps=1)
    products = [
        block.origin for block in running.device.tape.blocks
        if block.operator == "aten.mm" and block.origin.phase is Phase.BACKWARD and block.category != "workspaces"
    ]
    assert [origin.module for origin in products] == ["2", "2", "0"]
    frames = running.origins.stacks.frames()
    assert all(any(frame.name == "Linear.forward" for frame in frames[origin.forward_stack]) for origin in products)


def test_autocast_keeps_one_copy_of_every_weight_until_forward_ends(running):
    model, x = two_layers(), batch()[0]
    with torch.autocast("cuda", dtype=torch.bfloat16):
        model(x)
        before = len(running.device.tape.blocks)
        model(x)
        after = len(running.device.tape.blocks)
    casts = [block for block in running.device.tape.blocks[before:after] if block.operator == "aten._to_copy"]
    assert [block.num_bytes for block in casts] == [x.numel() * 2]  # no weight is cast twice


def test_a_storage_that_is_resized_to_nothing_gives_its_memory_back(running):
    tensor = torch.empty(MIB, device="cuda")
    tensor.untyped_storage().resize_(0)
    assert running.device.allocator.allocated_bytes == 0
    tensor.untyped_storage().resize_(4 * MIB)
    assert running.device.allocator.allocated_bytes == 4 * MIB


def test_one_simulation_runs_at_a_time(session):
    kept = torch.clear_autocast_cache
    refused = []

    def start():
        try:
            with Session(load_gpu("t4")).active():
                pass
        except Unsupported as error:
            refused.append(str(error))

    with session.active():
        start()
        thread = threading.Thread(target=start)
        thread.start()
        thread.join()
    assert len(refused) == 2 and all("a simulation is running already" in message for message in refused)
    assert torch.clear_autocast_cache is kept
    start()  # another may follow
    assert len(refused) == 2


# Values that are known are those of small tensors.

def test_chosen_elements_have_known_places_spread_evenly(running):
    rows, columns = torch.where(torch.empty(2, 3, device="cuda") > 0)
    assert rows.tolist() == [0, 0, 0, 1, 1, 1] and columns.tolist() == [0, 1, 2] * 2
    labels = torch.arange(6, device="cuda")[torch.empty(6, device="cuda") > 0]
    assert labels.tolist() == list(range(6))
    assert LARGEST_KNOWN_INTEGERS >= 90_000  # boxes of an image of a detection model


def test_small_tensors_of_a_simulated_host_can_be_read():
    with Session(None).active():
        assert torch.arange(3).tolist() == [0, 1, 2] and (torch.arange(3) + 1).max().item() == 3


def test_a_truth_value_that_decides_is_enough():
    with Session(load_gpu("a100-sxm4-80gb")).active():
        unknown = torch.empty(8, device="cuda") > 0
        yes, no = torch.ones(8, dtype=torch.bool, device="cuda"), torch.zeros(1, dtype=torch.bool, device="cuda")
        assert (unknown | yes).all().item() is True
        assert torch.logical_or(yes, unknown).all().item() is True
        assert (no & unknown).tolist() == [False] * 8
        assert torch.logical_and(unknown, no).any().item() is False


def test_a_truth_value_that_does_not_decide_tells_nothing(running):
    unknown, no = torch.empty(8, device="cuda") > 0, torch.zeros(8, dtype=torch.bool, device="cuda")
    assert running.simulation.values.of(unknown | no) is None
    assert running.simulation.values.of(unknown & no.logical_not()) is None


# Remembered layouts are those that the meta kernels give.

def sizes(session):
    torch.manual_seed(0)
    with session.active():
        model = nn.TransformerEncoderLayer(256, 4, 512, batch_first=True, device="cuda")
        optimizer = torch.optim.AdamW(model.parameters())
        for length in (16, 32, 16):
            model(torch.randn(2, length, 256, device="cuda")).pow(2).mean().backward()
            optimizer.step()
            optimizer.zero_grad()
    return [(block.operator, block.num_bytes, block.died) for block in session.device.tape.blocks]


def test_a_run_with_remembered_layouts_is_the_run_without():
    forgetful = Session(load_gpu("a100-sxm-80gb"))
    forgetful.simulation.kernels._slow = frozenset()
    assert sizes(Session(load_gpu("a100-sxm-80gb"))) == sizes(forgetful)


def test_an_operator_that_repeats_is_answered_from_memory():
    session = Session(load_gpu("a100-sxm-80gb"))
    sizes(session)
    kernels = session.simulation.kernels
    before = len(kernels._remembered)
    with session.active():
        x = torch.randn(2, 32, 256, device="cuda")
        torch.nn.functional.gelu(x)
        torch.nn.functional.gelu(x)
    assert 0 < before <= len(kernels._remembered) <= before + 2


# A module layer by layer.

def test_rows_have_the_figures_of_linear_layers() -> None:
    rows, total = traced_layers(build_trace("tests.tracing._modules:Stack", {"input": ("64x256",)}))
    found = {row.path: row for row in rows}
    up, down = found["layers.*.up"], found["layers.*.down"]
    assert up.kind == "Linear" and up.repeats == 4
    assert up.parameters == 256 * 1024 + 1024
    assert up.output_shape == (64, 1024)
    assert up.flops == down.flops == 2 * 64 * 256 * 1024
    assert total == sum(row.parameters * row.repeats for row in rows)


def test_what_is_saved_is_counted_once() -> None:
    rows, _ = traced_layers(build_trace("tests.tracing._modules:Stack", {"input": ("64x256",)}))
    saved = sum(row.saved_bytes * row.repeats for row in rows)
    # of each block its input and the output of relu, in fp32
    assert saved == 4 * (64 * 256 + 64 * 1024) * 4


@pytest.mark.parametrize("family", ["mapping", "dataclass", "tuple"])
def test_the_shape_of_an_output_is_that_of_its_tensor_not_of_the_loss_before_it(family: str) -> None:
    loss, logits = torch.empty(()), torch.empty(2, 8, 100)

    @dataclass
    class Output:
        loss: object
        logits: object

    made = {"mapping": {"loss": loss, "logits": logits}, "dataclass": Output(loss, logits), "tuple": (loss, logits)}
    found = first_tensor(made[family], with_dimensions=True)
    assert found is logits
    assert first_tensor(made[family]) is loss


# Numbers that seeded generators give on a card: those that people have printed.

SEED_0 = [0.3990, 0.5167, 0.0249, 0.9401, 0.9459]  # torch.rand(5): pytorch issue 47347
SEED_10 = [-0.1029, 1.6810, -0.2708]  # torch.randn(3): pytorch issue 79496
SEED_42 = {  # torch.randn(1, 64, 2048) by place, on a card of 28 multiprocessors: pytorch issue 158398
    (0, 0): 0.1940, (0, 1): 2.1614, (0, -1): -0.8932, (1, 0): -0.4574, (2, 2): -0.9147, (61, 0): -0.4861,
    (62, 1): 0.8339, (63, 0): -1.2356, (63, -1): -0.0282,
}


@pytest.fixture
def card():
    session = Session(load_gpu("h100-sxm-80gb"))
    with session.active():
        yield session


def test_uniform_numbers_are_those_of_the_card(card):
    torch.manual_seed(0)
    assert torch.rand(5, device="cuda").tolist() == pytest.approx(SEED_0, abs=5e-5)


def test_normal_numbers_are_those_of_the_card_whoever_holds_the_generator(card):
    torch.manual_seed(10)
    mine = torch.Generator(device="cuda").manual_seed(10)
    assert torch.randn(3, device="cuda").tolist() == pytest.approx(SEED_10, abs=5e-5)
    assert torch.randn(3, device="cuda", generator=mine).tolist() == pytest.approx(SEED_10, abs=5e-5)


def test_a_second_tensor_goes_on_where_the_first_one_stopped(card):
    torch.manual_seed(42)  # torch.nn.Linear(1, 1) on the card: mrdbourke/pytorch-deep-learning issue 759
    first, second = (torch.rand(1, device="cuda").item() * 2 - 1 for _ in range(2))
    assert (first, second) == pytest.approx((0.2259, 0.9754), abs=5e-5)


def test_large_tensors_depend_on_the_multiprocessors():
    state = values.State(42, 0, multiprocessors=28, threads=1536)
    numbers = values.normal(64 * 2048, state).view(64, 2048)
    assert {place: pytest.approx(numbers[place].item(), abs=5e-5) for place in SEED_42} == SEED_42
    other = values.normal(64 * 2048, state._replace(multiprocessors=132)).view(64, 2048)
    assert other[0, 0] == numbers[0, 0] and other[63, 0] != numbers[63, 0]


def test_the_generator_moves_on_with_what_operators_draw(card):
    generator = torch.cuda.default_generators[0]
    torch.manual_seed(1)
    torch.empty(132 * 2048 * 4 + 1, device="cuda").normal_()  # one more than all threads draw at once
    assert generator.get_offset() == 8
    torch.nn.functional.dropout(torch.ones(10, device="cuda"))
    assert generator.get_offset() == 12
    torch.rand(132 * 2048 * 2 + 1, dtype=torch.float64, device="cuda")
    assert generator.get_offset() == 20
    torch.ones(1000, device="cuda").bernoulli_(torch.ones(1000, device="cuda"))
    assert generator.get_offset() == 32


def test_states_are_kept_and_set(card):
    torch.manual_seed(-3)
    torch.rand(2, device="cuda")
    state = torch.cuda.get_rng_state()
    drawn = torch.rand(2, device="cuda").tolist()
    torch.cuda.set_rng_state(state)
    assert torch.rand(2, device="cuda").tolist() == drawn and state.numel() == 16


def test_integers_lie_in_their_range_and_bf16_keeps_its_bounds():
    state = values.State(7, 4, multiprocessors=108, threads=2048)
    numbers = values.integers(10_000, -3, 5, state)
    assert set(numbers.tolist()) == set(range(-3, 5))
    assert values.uniform(100_000, state, torch.bfloat16).max() < 1


def test_a_router_of_random_weights_chooses_the_experts_that_it_chooses_on_the_card(card):
    torch.manual_seed(42)
    chosen = torch.randn(16, 8, device="cuda").topk(2).indices
    with_numbers = values.normal(128, values.State(42, 0, multiprocessors=132, threads=2048)).view(16, 8)
    tokens = [torch.where(chosen == expert)[0].numel() for expert in range(8)]
    assert tokens == torch.bincount(with_numbers.topk(2).indices.flatten(), minlength=8).tolist()
