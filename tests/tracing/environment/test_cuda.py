"""What torch.cuda answers for a simulated card."""

import threading

import pytest
import torch

from vramcast.catalogue.gpus import load_gpu
from vramcast.tracing.distributed.groups import World
from vramcast.tracing.environment.cuda import Properties, device_name
from vramcast.tracing.session import Session
from vramcast.tracing.tape import Action, play


@pytest.fixture
def two_cards():
    return Session(load_gpu("h100-sxm-80gb"), num_devices=2)


def test_properties_are_those_of_the_chosen_card(session):
    with session.active():
        properties = torch.cuda.get_device_properties("cuda")
        assert properties.total_memory == session.gpu.visible_bytes
        assert (properties.major, properties.minor) == torch.cuda.get_device_capability()
        assert properties.multi_processor_count == 108
        assert torch.cuda.get_device_name(0) == "NVIDIA A100-SXM4-80GB"
        assert torch.cuda.is_bf16_supported()
        assert torch.version.cuda and torch.backends.cuda.is_built()
    assert torch.version.cuda is None
    assert not torch.cuda.is_available()


def test_a_property_nobody_knows_is_a_sentence():
    from vramcast.errors import Unsupported

    properties = Properties(load_gpu("b300-270gb"), 0)
    with pytest.raises(Unsupported, match="L2_cache_size of b300-270gb is not known"):
        _ = properties.L2_cache_size
    assert device_name(load_gpu("rtx-4090")) == "NVIDIA GeForce RTX 4090"


def test_memory_that_runs_out_raises_what_torch_raises_and_a_smaller_request_works():
    session = Session(load_gpu("rtx-4090"), capacity_bytes=1 << 30)
    with session.active():
        with pytest.raises(torch.cuda.OutOfMemoryError, match=r"CUDA out of memory\. Tried to allocate 2\.00 GiB"):
            torch.empty(1 << 29, device="cuda")
        assert torch.empty(1 << 20, device="cuda").is_cuda
        torch.cuda.set_per_process_memory_fraction(0.001)
        with pytest.raises(torch.OutOfMemoryError, match="allowed"):
            torch.empty(1 << 26, device="cuda")


def test_without_a_capacity_nothing_runs_out(running):
    torch.cuda.set_per_process_memory_fraction(0.1)
    assert torch.empty(1 << 40, device="cuda").is_cuda


def test_events_have_always_happened(running):
    start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
    start.record()
    end.record()
    end.synchronize()
    assert end.query() and start.elapsed_time(end) > 0


def test_a_graph_keeps_the_memory_of_its_capture_until_it_is_gone(session):
    with session.active():
        weight, graph = torch.randn(2048, 2048, device="cuda"), torch.cuda.CUDAGraph()
        before = torch.cuda.memory_reserved()
        with torch.cuda.graph(graph):
            assert torch.cuda.is_current_stream_capturing()
            (weight + 1).sum()
        graph.replay()
        torch.cuda.empty_cache()
        kept = torch.cuda.memory_reserved()
        graph.reset()
        torch.cuda.empty_cache()
        after = torch.cuda.memory_reserved()
    assert kept >= before + weight.nbytes and after < kept
    assert any("CUDA graphs" in assumption.what for assumption in session.assumptions)
    assert list(play(session.device.tape).reserved)[-1] in (kept, after)


def test_graphed_callables_train_in_one_pool(running):
    model = torch.nn.Linear(256, 256).cuda()
    sample = torch.randn(8, 256, device="cuda", requires_grad=True)
    graphed = torch.cuda.make_graphed_callables(model, (sample,))
    graphed(torch.randn(8, 256, device="cuda")).sum().backward()
    assert model.weight.grad.shape == (256, 256)
    begun = {aside.number for aside in running.device.tape.asides if aside.action is Action.BEGIN_POOL}
    assert len(begun) == 1


def test_caches_given_back_are_on_the_tape(running):
    torch.zeros(64 << 20, device="cuda")
    torch.cuda.empty_cache()
    torch.zeros(1, device="cuda")
    reserved = torch.cuda.memory_reserved()
    assert play(running.device.tape).reserved[-1] == reserved == 2 << 20


def test_two_cards_are_chosen_by_index_and_by_context(two_cards):
    with two_cards.active():
        assert torch.cuda.device_count() == torch.accelerator.device_count() == 2
        assert torch.empty(1, device="cuda:1").device.index == 1
        with torch.cuda.device(1):
            assert torch.empty(1, device="cuda").device.index == 1
        torch.cuda.set_device(1)
        assert torch.randn(2).cuda().device.index == 1
        with pytest.raises(RuntimeError, match="invalid device ordinal"):
            torch.empty(1, device="cuda:2")


def test_hidden_cards_are_not_seen(two_cards, monkeypatch):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "1")
    with two_cards.active():
        assert torch.cuda.device_count() == 1
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    with two_cards.active():
        assert not torch.cuda.is_available()


def test_data_parallel_splits_a_batch_over_the_cards(two_cards):
    with two_cards.active():
        model = torch.nn.DataParallel(torch.nn.Linear(64, 64).cuda())
        threads = set()
        model.module.register_forward_hook(lambda *_: threads.add(threading.get_ident()))
        model(torch.randn(8, 64, device="cuda")).sum().backward()
        assert model.module.weight.grad.device.index == 0
        assert threads == {threading.get_ident()}  # one after the other: the same run every time
    assert two_cards.memory.devices[1].tape.blocks


def test_a_thread_sees_the_card(session):
    found = []
    with session.active():
        thread = threading.Thread(target=lambda: found.append(torch.ones(3).cuda().device))
        thread.start()
        thread.join()
    assert found == [torch.device("cuda", 0)]


def test_random_states_are_kept_and_set(running):
    torch.cuda.manual_seed_all(7)
    state = torch.cuda.get_rng_state()
    torch.cuda.set_rng_state(state)
    generator = torch.Generator(device="cuda").manual_seed(3)
    assert generator.device.type == "cuda" and isinstance(generator, torch.Generator)
    assert torch.randn(3, device="cuda", generator=generator).is_cuda


def test_a_number_is_a_card() -> None:
    real = torch.device
    with Session(load_gpu("h100-sxm-80gb"), world=World(8)).active():
        assert torch.device(3) == torch.device("cuda:3")
        assert isinstance(torch.zeros(1, device=2).device, torch.device)
        assert torch.zeros(1, device=2).device.index == 2
        assert {real: "key"}[torch.device] == "key"
        assert torch.device("meta").type == "meta"
    assert torch.device is real
