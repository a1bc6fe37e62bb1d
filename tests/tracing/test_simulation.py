"""A simulated device behaves as torch's own does, and is gone afterwards."""

import threading

import pytest
import torch
import torch._dynamo
from torch import nn
from torch.nn import functional as F

from vramcast.catalogue.gpus import load_gpu
from vramcast.errors import Unsupported
from vramcast.tracing.result import categorise
from vramcast.tracing.session import Session
from vramcast.tracing.tape import Phase, highest, live_after, play

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
