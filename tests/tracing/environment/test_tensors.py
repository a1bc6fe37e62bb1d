"""Moving, reading, pinning and keeping simulated tensors."""

import copy
import io

import pytest
import torch
from torch import nn

from vramcast.catalogue.gpus import load_gpu
from vramcast.errors import InvalidSpec
from vramcast.question.tracing import read_value
from vramcast.tracing.session import Session


def unknown(*size, dtype=torch.float32):
    """A tensor on the card that nobody knows the values of."""
    return torch.empty(size, device="cuda", dtype=dtype)


@pytest.mark.parametrize("move", [
    lambda module: module.cuda(), lambda module: module.to("cuda"), lambda module: module.to(0),
    lambda module: module.to("cuda", torch.bfloat16), lambda module: module.half().cuda(),
])
def test_modules_keep_their_parameters_and_what_ties_them(running, move):
    module = nn.Sequential(nn.Embedding(30, 20), nn.Linear(20, 30, bias=False))
    module[0].weight = module[1].weight
    weight = module[1].weight
    move(module)
    assert module[0].weight is module[1].weight is weight
    assert weight.is_cuda and weight.requires_grad and isinstance(weight, nn.Parameter)
    assert torch.cuda.memory_allocated() == 512 * -(-30 * 20 * weight.itemsize // 512)
    module.cpu()
    assert module[0].weight is weight and weight.device.type == "cpu"


def test_gradients_move_with_their_parameters(running):
    module = nn.Linear(4, 4)
    module(torch.randn(2, 4)).sum().backward()
    module.cuda()
    assert module.weight.grad.is_cuda
    module(torch.randn(2, 4, device="cuda")).sum().backward()


def test_an_empty_module_gets_memory_on_the_card(running):
    module = nn.Linear(64, 64, device="meta").to_empty(device="cuda")
    assert module.weight.is_cuda
    assert torch.cuda.memory_allocated() == 64 * 64 * 4 + 512


def test_what_is_read_is_assumed_and_noted_with_its_place(running):
    loss = unknown(4, 4).sum()
    assert loss.item() == float(loss) == 1.0
    assert f"{loss:.2f}" == "1.00"
    assert not torch.isnan(loss) and not (unknown(3) == unknown(3)).any()
    assert torch.isfinite(loss).all()
    assert torch.equal(unknown(3), unknown(3)) and torch.allclose(unknown(3), unknown(3))
    assert unknown(3).tolist() == [1.0] * 3
    assert unknown(2, 3).cpu().numpy().shape == (2, 3)
    assert repr(unknown(2)) == "tensor(..., device='cuda:0', size=(2,), dtype=torch.float32)"
    assert repr(torch.ones(2, device="cuda")) == "tensor([1., 1.], device='cuda:0')"
    places = {assumption.place for assumption in running.assumptions}
    assert places and all(place.startswith(__file__) for place in places)


def test_a_value_that_the_user_gives_is_read(monkeypatch):
    line = read_given.__code__.co_firstlineno + 1
    session = Session(load_gpu("a100-sxm-80gb"), values={f"test_tensors.py:{line}": 0.25})
    with session.active():
        assert read_given(unknown(3).sum()) == 0.25
    assert not list(session.assumptions)


def read_given(tensor):
    return tensor.item()


def test_an_integer_that_sizes_follow_from_is_asked_for(session):
    with session.active(), pytest.raises(InvalidSpec, match=r"test_tensors.py:\d+: the integer that aten.max returns"):
        unknown(3, dtype=torch.int64).max().item()


@pytest.mark.parametrize("text", ["train.py=3", "train.py:x=3", "train.py:3=abc", ""])
def test_values_that_name_no_place_or_number_are_refused(text):
    with pytest.raises(InvalidSpec, match="write FILE:LINE=VALUE"):
        read_value(text)


def test_shapes_that_depend_on_data_are_the_largest_possible(running):
    mask = unknown(4, 8, dtype=torch.bool)
    assert mask.nonzero().shape == (32, 2)
    assert torch.where(mask)[0].shape == (32,)
    assert unknown(4, 8, 3)[mask].shape == (32, 3)
    assert unknown(4, 8).masked_select(mask).shape == (32,)
    assert unknown(9, dtype=torch.int64).unique().shape == (9,)
    with pytest.raises(InvalidSpec, match=r"give the number of elements with --value test_tensors.py"):
        torch.repeat_interleave(unknown(3, dtype=torch.int64))


def test_routing_gives_every_expert_the_same_share(running):
    chosen = unknown(64, 8).topk(2).indices
    assert torch.bincount(chosen.flatten(), minlength=8).tolist() == [16] * 8
    masks = nn.functional.one_hot(chosen, 8).permute(2, 1, 0)
    assert torch.where(masks[3])[1].shape == (16,)
    assert unknown(5, 7).argmax(1).tolist() == [0, 1, 2, 3, 4]
    assert unknown(5).sort().indices.tolist() == [0, 1, 2, 3, 4]


def test_pinned_memory_says_so(running):
    host = torch.randn(3)
    pinned = host.pin_memory()
    assert pinned.is_pinned() and not host.is_pinned() and pinned.tolist() == host.tolist()
    assert pinned.to("cuda", non_blocking=True).is_cuda
    for made in (torch.tensor([1, 2], pin_memory=True), torch.zeros(2, pin_memory=True)):
        assert made.is_pinned() and made.device.type == "cpu" and made.sum() in (0, 3)
    with pytest.raises(RuntimeError, match="only dense CPU tensors can be pinned"):
        unknown(3).pin_memory()


def test_a_state_dict_is_saved_and_read_back_without_touching_the_users_file(session, tmp_path):
    path = tmp_path / "model.pt"
    path.write_bytes(b"trained for a month")
    with session.active():
        module = nn.Linear(300, 300).cuda()
        torch.save({"model": module.state_dict(), "step": 3}, path)
        read = torch.load(path)
        assert read["step"] == 3 and read["model"]["weight"].is_cuda
        assert torch.load(path, map_location="cpu")["model"]["weight"].device.type == "cpu"
        module.load_state_dict(read["model"])
        buffer = io.BytesIO()
        torch.save(module, buffer)
        buffer.seek(0)
        assert torch.load(buffer, weights_only=False).weight.is_cuda
    assert path.read_bytes() == b"trained for a month"


def test_real_files_are_read_onto_the_card(session, tmp_path):
    torch.save({"weight": torch.arange(6.0)}, tmp_path / "real.pt")
    with session.active():
        read = torch.load(tmp_path / "real.pt", map_location="cuda")
        assert read["weight"].is_cuda and read["weight"].tolist() == [0, 1, 2, 3, 4, 5]
        assert torch.cuda.memory_allocated() == 512


def test_safetensors_of_simulated_tensors_are_kept_out(session, tmp_path):
    safetensors = pytest.importorskip("safetensors.torch")
    path = tmp_path / "model.safetensors"
    with session.active():
        safetensors.save_file({"weight": unknown(300, 300)}, path)
        assert path.is_file()
    assert not path.exists()


def test_copies_of_modules_and_tensors_have_memory_of_their_own(running):
    tensor = unknown(300)
    assert copy.deepcopy(tensor).data_ptr() != tensor.data_ptr() != 0
    assert copy.deepcopy(nn.Linear(3, 3).cuda()).weight.is_cuda


def test_modules_compiled_by_others_than_inductor_run_eagerly_and_say_so(running):
    model = torch.compile(nn.Linear(4, 4).cuda(), backend="cudagraphs", mode="reduce-overhead")
    torch.compiler.cudagraph_mark_step_begin()
    assert model(torch.randn(2, 4, device="cuda")).is_cuda
    assert "_orig_mod.weight" in model.state_dict()

    @torch.compile(fullgraph=True, backend="eager")
    def double(tensor):
        return tensor * 2

    assert double(torch.ones(2, device="cuda")).tolist() == [2, 2]
    said = {assumption.what for assumption in running.assumptions}
    assert any("runs eagerly" in what for what in said) and any("without CUDA graphs" in what for what in said)


def test_flex_attention_is_fused_and_trains(running):
    from torch.nn.attention import flex_attention as flex

    mask = flex.create_block_mask(lambda _b, _h, q, k: q >= k, None, None, 256, 256, device="cuda")
    query = torch.randn(2, 8, 256, 64, device="cuda", requires_grad=True)
    key, value = (torch.randn(2, 2, 256, 64, device="cuda", requires_grad=True) for _ in range(2))
    before = torch.cuda.memory_allocated()
    out = torch.compile(flex.flex_attention)(query, key, value, block_mask=mask, enable_gqa=True)
    assert torch.cuda.memory_allocated() - before == out.nbytes + 4 * 2 * 8 * 256  # one statistic a row
    out.sum().backward()
    assert key.grad.shape == key.shape and out.shape == query.shape


def test_transforms_and_scripted_modules_run(running):
    assert torch.vmap(lambda row: row.sum())(unknown(3, 4)).shape == (3,)
    assert torch.func.grad(lambda row: row.sum())(unknown(3)).is_cuda
    assert torch.jit.script(nn.Linear(4, 4).cuda())(unknown(2, 4)).is_cuda


@pytest.mark.parametrize("use_reentrant", [True, False])
def test_activations_are_recomputed_with_the_random_state_kept(running, use_reentrant):
    from torch.utils.checkpoint import checkpoint

    block = nn.Sequential(nn.Linear(64, 64), nn.Dropout(), nn.Linear(64, 64)).cuda()
    inputs = torch.randn(8, 64, device="cuda", requires_grad=True)
    checkpoint(block, inputs, use_reentrant=use_reentrant, preserve_rng_state=True).sum().backward()
    assert inputs.grad.is_cuda


def test_workers_of_a_loader_run_in_the_process(session):
    from torch.utils.data import DataLoader, TensorDataset

    seeds = []
    with session.active():
        data = TensorDataset(torch.arange(10))
        loader = DataLoader(
            data, 4, num_workers=2, pin_memory=True, persistent_workers=True, prefetch_factor=2,
            worker_init_fn=seeds.append, timeout=5,
        )
        for _ in range(2):
            assert [batch[0].tolist() for batch in loader] == [[0, 1, 2, 3], [4, 5, 6, 7], [8, 9]]
        assert next(iter(loader))[0].is_pinned()
    assert seeds == [0]


def test_old_names_of_tensor_types_work(running):
    made = torch.cuda.FloatTensor([1, 2])
    assert made.tolist() == [1, 2] and isinstance(made, torch.cuda.FloatTensor)
    assert made.type() == "torch.cuda.FloatTensor"
    assert torch.cuda.FloatTensor([1], device=torch.device("cuda", 0)).is_cuda
    assert torch.ones(2).type("torch.cuda.LongTensor").dtype is torch.int64
    assert torch.cuda.HalfTensor(2, 3).shape == (2, 3)
    assert torch.ones(2).type(torch.float64).dtype is torch.float64


def test_of_spawned_processes_one_runs_here(session):
    ran = []
    with session.active():
        torch.multiprocessing.spawn(lambda rank, name: ran.append((rank, name)), args=("x",), nprocs=4)
    assert ran == [(0, "x")]


def test_moving_to_another_tensor_goes_where_that_one_is(running):
    x, large, small = unknown(10, dtype=torch.float16), torch.randn(1 << 20), torch.randn(3)
    assert {(there.device.type, there.dtype) for there in (large.to(x), small.to(x))} == {("cuda", torch.float16)}
    assert x.to(large).device.type == "cpu"
    assert large.to("cpu") is large
    assert x.to("cuda", copy=True) is not x


def test_functions_of_torch_func_run(running):
    model = torch.nn.Linear(8, 8).cuda()
    weights = dict(model.named_parameters())

    def loss(weights, x):
        return torch.func.functional_call(model, weights, (x,)).square().mean()

    gradients = torch.func.grad(loss)(weights, torch.randn(4, 8, device="cuda"))
    each = torch.func.vmap(torch.func.grad(loss), in_dims=(None, 0))(weights, torch.randn(4, 8, device="cuda"))
    assert gradients["weight"].device == each["weight"].device == torch.device("cuda", 0)
    assert each["weight"].shape == (4, 8, 8)
    del gradients, each
    workspaces = sum(block.num_bytes for block in running.device.workspaces.values())
    assert torch.cuda.memory_allocated() == 2 * 512 + workspaces


def test_gradients_of_a_loss_on_the_host_return_to_the_card(running):
    layer = nn.Linear(512, 512, device="cuda")
    out = layer(unknown(256, 512)).cpu()
    before = torch.cuda.memory_allocated()
    ((out - torch.randn(256, 512)) ** 2).mean().backward()
    assert layer.weight.grad.is_cuda
    assert torch.cuda.memory_allocated() - before >= 512 * 512 * 4


@pytest.mark.parametrize("size", [64, 2048])
def test_gradients_of_weights_kept_on_the_host_return_to_it(running, size):
    weight = nn.Linear(size, size, bias=False).weight
    nn.functional.linear(unknown(4096, size), weight.cuda()).sum().backward()
    assert weight.grad.device.type == "cpu" and weight.grad.shape == weight.shape
    workspaces = 2 * 8519680
    assert torch.cuda.memory_allocated() <= workspaces


def test_values_that_torch_itself_asks_for_keep_its_own_code_on_its_path(running):
    x = unknown(3, 20000).requires_grad_()
    torch.cov(x, aweights=unknown(20000).abs()).sum().backward()
    window = unknown(400)
    waves = torch.istft(unknown(201, 300, dtype=torch.complex64), 400, window=window)
    assert x.grad.shape == x.shape and waves.dim() == 1


def test_sums_of_truth_values_that_nobody_wants_are_zero(running):
    assert unknown(4096, 64).isnan().sum().item() == 0
    assert isinstance(unknown(1, dtype=torch.complex64).item(), complex)


@pytest.mark.parametrize("unique", [lambda x: torch.unique(x, dim=1), lambda x: torch.unique_consecutive(x, dim=1)])
def test_slices_of_unknown_values_are_all_different(running, unique):
    assert unique(unknown(512, 300)).shape == (512, 300)


def test_steps_between_known_tensors_are_known(running):
    start = torch.tensor(0.0, device="cuda")
    assert torch.linspace(start, torch.tensor(1.0, device="cuda"), 3).tolist() == [0, 0.5, 1]


def test_a_real_weight_of_the_host_takes_a_gradient_of_the_card(running):
    weight = nn.Parameter(torch.ones(8, 8))
    weight.grad = unknown(8, 8).cpu()
    torch.optim.SGD([weight], lr=0.1).step()
    assert weight.grad.device.type == "cpu"


def test_distributions_find_their_parameters_valid(running):
    chosen = torch.distributions.Categorical(logits=unknown(8, 6))
    assert chosen.log_prob(chosen.sample()).shape == (8,)
    assert "aten._is_all_true" not in running.simulation.unseen


def test_what_would_end_a_loop_early_does_not_come_true(running):
    turns = []
    for turn in range(4):
        if (unknown(4) == 2).all():
            break
        if not unknown(4).isfinite().all():
            break
        turns.append(turn)
    assert len(turns) == 4


def test_packed_bits_are_shifted(running):
    packed = torch.empty(64, 64, dtype=torch.uint8, device="cuda")
    assert ((packed >> 4) | (packed << 4)).shape == (64, 64)
    assert not running.simulation.unseen


def test_what_torch_checks_holds(running):
    torch._check_tensor_all(unknown(4096, 64) >= 0)
    assert not running.simulation.unseen


def test_a_loader_still_answers_next_as_older_torch_did_and_says_so(running):
    batches = iter(torch.utils.data.DataLoader([torch.ones(2)] * 4, batch_size=2))
    assert batches.next().shape == (2, 2) and len(next(batches)) == 2
    assert any("next(iterator) takes its place" in one.what for one in running.assumptions)
    with pytest.raises(StopIteration):
        batches.next()
