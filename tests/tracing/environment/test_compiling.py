"""What torch.compile makes of a function on a simulated card: Inductor's own plan of buffers."""

import pytest
import torch
from torch import nn
from torch.nn import functional
from torch.utils.checkpoint import checkpoint

MIB = 2**20


def allocated(device, since):
    """Sizes of what was allocated since [MiB]."""
    return [device.tape.blocks[event - 1].num_bytes / MIB for event in device.tape.events[since:] if event > 0]


def peak_of(device, step):
    """Most that a second call has at once beyond what was there [MiB]."""
    step()
    before = device.allocator.allocated_bytes
    device.allocator.reset_peaks()
    step()
    return (device.allocator.peak_allocated_bytes - before) / MIB


class Block(nn.Module):
    def __init__(self, width=256):
        super().__init__()
        self.inner, self.outer = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)
        self.norm = nn.LayerNorm(width)

    def forward(self, x):
        wide = self.inner(self.norm(x))
        return x + self.outer(wide * torch.sigmoid(1.702 * wide) * 2.0)


def test_what_is_fused_has_one_buffer(running):
    def chain(x):
        return torch.tanh(x * 2 + 1) * x.sigmoid()

    x, device = torch.randn(1024, 256, device="cuda"), running.device
    assert len(allocated(device, [len(device.tape.events), chain(x)][0])) == 5
    compiled = torch.compile(chain)
    for _ in range(2):
        since = len(device.tape.events)
        out = compiled(x)
        assert allocated(device, since) == [1.0] and out.shape == x.shape and out.is_cuda


@pytest.mark.parametrize(("function", "elements"), [
    (lambda table, rows: table[rows] + 1, 2 * 8 * 256 + 8 * 2),  # an index is of 8 bytes
    (lambda table, rows: table[:8] * table[8:16], 3 * 8 * 256),
    (lambda table, rows: table.mul_(2), 2 * 4096 * 256),
])
def test_a_kernel_moves_what_it_reads_and_writes(running, function, elements):
    """Of a table the rows that are looked up."""
    table, rows = torch.randn(4096, 256, device="cuda"), torch.zeros(8, dtype=torch.int64, device="cuda")
    torch.compile(function)(table, rows)
    tape = running.device.tape
    assert tape.costs[tape.operations[-1]].num_bytes == 4 * elements


def test_a_compiled_step_trains_with_less(running):
    """What an activation is made of is worked out again in the backward."""
    x = torch.randn(4096, 256, device="cuda")  # 4 MiB; the inner product is 16

    def step(model):
        def once():
            model(x).sum().backward()
            model.zero_grad()

        return once

    eager, compiled = Block().cuda(), torch.compile(Block().cuda())
    most = [peak_of(running.device, step(model)) for model in (eager, compiled)]
    assert most[1] < 0.8 * most[0]
    compiled(x).sum().backward()
    assert all(weight.grad.shape == weight.shape and weight.grad.is_cuda for weight in compiled.parameters())
    assert "_orig_mod.inner.weight" in compiled.state_dict()
    assert not [each for each in running.assumptions if "compile" in each.what]


@pytest.mark.parametrize("enabled", [False, True])
def test_autocast_and_attention_are_the_card_s(running, enabled):
    query = torch.randn(1, 4, 256, 64, device="cuda", requires_grad=True)

    @torch.compile
    def attend(x):
        return functional.scaled_dot_product_attention(x * 2, x, x, is_causal=True)

    with torch.autocast("cuda", torch.bfloat16, enabled=enabled):
        out = attend(query)
    names = {block.operator for block in running.device.tape.blocks}
    flash, efficient = (f"aten._scaled_dot_product_{kind}_attention" in names for kind in ("flash", "efficient"))
    assert (out.dtype, flash, efficient) == ((torch.bfloat16, True, False) if enabled else (torch.float32, False, True))
    out.float().sum().backward()
    assert query.grad.dtype is torch.float32


def test_losses_keep_their_gradients(running):
    """Operators that have Python kernels for tensors without data are taken apart for autograd all the same."""
    logits, targets = torch.randn(64, 32, device="cuda", requires_grad=True), torch.zeros(64, device="cuda").long()
    torch.compile(functional.cross_entropy)(logits * 1, targets).backward()
    assert logits.grad is not None


def test_what_cannot_be_compiled_runs_eagerly_and_is_said(monkeypatch, running):
    import torch._inductor.compile_fx as inductor

    def broken(*_args, **_kwargs):
        raise RuntimeError("no such lowering")

    monkeypatch.setattr(inductor, "_compile_fx_inner", broken)
    model = torch.compile(Block().cuda())
    model(torch.randn(8, 256, device="cuda")).sum().backward()
    assert model.inner.weight.grad is not None
    said = [each.what for each in running.assumptions]
    assert any("could not be compiled here" in what and "no such lowering" in what for what in said), said


def test_other_sizes_and_breaks_of_the_graph_are_compiled_anew(running):
    @torch.compile
    def halves(x):
        y = x * 2 + 1
        torch._dynamo.graph_break()
        return (y * y).sum(-1)

    for rows in (64, 96, 128):
        assert halves(torch.randn(rows, 32, device="cuda")).shape == (rows,)
    model = Block().cuda()
    model.compile(mode="max-autotune", dynamic=False)
    assert model(torch.randn(8, 256, device="cuda")).shape == (8, 256)
    assert any("without CUDA graphs" in each.what for each in running.assumptions)


def test_checkpoints_are_compiled(running):
    """Attention may draw: its state is kept for the second run."""
    x, block = torch.randn(1, 4, 256, 64, device="cuda", requires_grad=True), functional.scaled_dot_product_attention

    @torch.compile
    def attend(x):
        return checkpoint(lambda y: block(y * 2, y, y, is_causal=True, dropout_p=0.1), x, use_reentrant=False)

    attend(x).sum().backward()
    assert x.grad is not None and x.grad.is_cuda
    assert not [each for each in running.assumptions if "compile" in each.what]


@pytest.mark.parametrize("kind", [torch.optim.AdamW, torch.optim.RMSprop])
def test_what_a_compiled_optimizer_holds_is_on_the_card(running, kind):
    """As much as it holds eagerly, and temporaries no more."""

    def step(is_compiled):
        model = nn.Linear(1024, 1024, bias=False).cuda()  # 4 MiB
        optimizer = kind(model.parameters())
        update = torch.compile(optimizer.step) if is_compiled else optimizer.step

        def once():
            model.weight.grad = torch.ones_like(model.weight)
            update()
            model.weight.grad = None

        return once, model, optimizer

    eager, compiled = step(False), step(True)
    most = [peak_of(running.device, once) for once, *_ in (eager, compiled)]
    large = [[v for v in each[2].state[each[1].weight].values() if v.dim()] for each in (eager, compiled)]
    assert len(large[0]) == len(large[1]) and all(state.is_cuda for state in large[1])
    assert most[1] < 0.6 * most[0], most
    assert not [each for each in running.assumptions if "compile" in each.what]


def test_a_module_of_torch_s_own_is_compiled(running):
    model = torch.compile(nn.Sequential(nn.Linear(32, 32), nn.ReLU()).cuda())
    model(torch.randn(8, 32, device="cuda")).sum().backward()
    assert all(weight.grad.is_cuda for weight in model.parameters())
    assert not [each for each in running.assumptions if "compile" in each.what]


def test_a_module_compiled_in_place_is_seen_and_fused(running):
    """`Module.compile`: hooks of all modules, by which a run knows its forwards, stay around what it compiles."""
    model, seen = Block().cuda(), []
    model.compile()
    with nn.modules.module.register_module_forward_pre_hook(lambda module, _inputs: seen.append(type(module))):
        model(torch.randn(64, 256, device="cuda")).sum().backward()
    assert seen == [Block] and all(one.grad is not None for one in model.parameters())
