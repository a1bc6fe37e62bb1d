"""Constructs of public scripts, each of which once ended a trace: at the edge where a tensor without data meets C++."""

import os
import subprocess
import sys
from pathlib import Path
from unittest.mock import patch

import numpy as np
import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.nn import functional

from vramcast.catalogue.gpus import load_gpu
from vramcast.errors import Unsupported
from vramcast.tracing.distributed.groups import parse_world
from vramcast.tracing.session import Session


def sparse_buffer():  # Whisper
    module = nn.Linear(8, 8)
    module.register_buffer("heads", torch.eye(4).bool().to_sparse(), persistent=False)
    heads = module.cuda().heads
    assert heads.is_sparse and heads.is_cuda and heads._nnz() == 4


def scalars_among_data():  # Qwen2-VL, packed losses
    known, unknown = torch.tensor(3, device="cuda"), torch.empty(4, device="cuda", dtype=torch.bfloat16).sum()
    assert torch.tensor([known, 2]).tolist() == [3, 2]
    assert torch.as_tensor([[unknown], [unknown]], device="cuda").dtype is torch.bfloat16
    assert torch.tensor(unknown, device="cuda").is_cuda


def new_tensor():  # fast_neural_style, detection
    like = torch.empty(2, 3, device="cuda")
    before = torch.cuda.memory_allocated()
    made, counted = like.new_tensor([0.485, 0.456]), like.new_tensor(3, dtype=torch.long)
    assert made.is_cuda and made.dtype is torch.float32 and counted.item() == 3
    assert torch.cuda.memory_allocated() == before + 2 * 512
    assert torch.empty(2).new_tensor([1, 2]).tolist() == [1.0, 2.0]


def stream_by_name():  # timm's loader
    stream = torch.cuda.Stream()
    with torch.cuda.stream(stream=stream):
        assert torch.cuda.current_stream() == stream
    with torch.cuda.StreamContext(stream=stream):
        assert torch.cuda.current_stream() == stream


def default_type_of_the_card():  # Llama's reference code, NeRF
    torch.set_default_tensor_type(torch.cuda.HalfTensor)
    try:
        made = nn.Linear(8, 8).weight, torch.Tensor(2, 3), torch.arange(3.0), torch.Tensor([1, 2])
        assert all(each.is_cuda and each.dtype is torch.float16 for each in made)
        torch.set_default_tensor_type("torch.cuda.FloatTensor")
        assert torch.empty(2).dtype is torch.float32
    finally:
        torch.set_default_tensor_type(torch.FloatTensor)
    assert not torch.empty(2).is_cuda and not torch.Tensor(2).is_cuda


def kernel_from_source():  # modded-nanogpt
    written = torch.ones(8, device="cuda")
    kernel = torch.cuda._compile_kernel("__global__ void f(float* x) {}", "f")
    kernel.set_shared_memory_config(64 * 1024)
    kernel((1, 1, 1), (32, 1, 1), (written,))
    assert "tensor(..." in repr(written)


def extension_from_source():  # 3D code
    from torch.utils.cpp_extension import load_inline

    built = load_inline("own", cpp_sources="", cuda_sources="", functions=["forward"])
    with pytest.raises(Unsupported, match=r"own\.forward is a compiled function"):
        built.forward(torch.ones(8, device="cuda"))
    source = """
        // torch::zeros(1)
        torch::Tensor scan(torch::Tensor x, torch::Tensor out) { run<<<1, 1>>>(x.data_ptr<float>()); return out; }
        at::Tensor doubled(const at::Tensor &x, int n) { auto y = torch::empty_like(x); if (n) { run(y); } return y; }
        void fill(const int n, at::Tensor& x) { auto stream = at::cuda::getCurrentCUDAStream(); run(x, n, stream); }
        at::Tensor other(const at::Tensor &x) { return run(x); }
    """
    names = ["scan", "doubled", "fill", "other"]
    built, given = load_inline("own", source, functions=names), torch.ones(512, 1024, device="cuda")
    before = torch.cuda.memory_allocated()
    assert built.scan(torch.ones(8, device="cuda"), given) is given and built.fill(3, given) is None
    made = built.doubled(given, 1)
    assert made.shape == given.shape and torch.cuda.memory_allocated() - before == given.nbytes
    for function in (built.other, load_inline("own", f"{source} x.clone();", functions=names).scan):
        with pytest.raises(Unsupported, match="is a compiled function"):
            function(given)


def process_with_the_card():  # mnist_hogwild
    model, ran = nn.Linear(8, 8).cuda(), []
    model.share_memory()
    started = [torch.multiprocessing.Process(target=lambda model: ran.append(model), args=(model,)) for _ in range(2)]
    for process in started:
        process.start()
    for process in started:
        process.join()
    assert ran == [model] and not started[1].is_alive() and started[1].exitcode == 0

    def rank(number):  # ijepa
        ran.append(number)

    rank.__module__ = "__main__"
    with patch("multiprocessing.get_start_method", lambda **_how: "spawn"):
        for number in range(2):
            torch.multiprocessing.Process(target=rank, args=(number,)).start()
    assert len(ran) == 1  # ranks that follow are taken to do the same, of whichever kind the first one was


def periods_of_frequencies():  # TimesNet
    _, chosen = torch.topk(torch.rand(49, device="cuda"), 5)
    assert (96 // chosen.cpu().numpy()).min() > 0


def data_that_is_not_there():  # a folder of ImageNet, tokens that a script of its own prepares, torch.hub
    folder = pytest.importorskip("torchvision").datasets.ImageFolder("imagenet/train", lambda image: image.size)
    assert folder[1001] == ((500, 375), 1) and len(folder.classes) == 1000
    assert max(label for _, label in folder) == 1 and max(folder.targets) == 999  # few of its own are enough
    tokens = np.memmap("data/train.bin", dtype=np.uint16, mode="r")
    assert isinstance(tokens, np.memmap) and len(tokens) > 1 << 20
    assert torch.hub.load("pytorch/vision:v0.10.0", "resnet18", pretrained=True).fc.weight.shape[0] == 1000


def made_sparse():  # SPLADE
    tensor = torch.randn(2, 8, device="cuda")
    kept = tensor.to_sparse().coalesce()
    assert torch.mm(kept, kept.transpose(0, 1)).to_dense().shape == (2, 2)
    assert kept.indices().shape == (2, 16) and kept.values().shape == (16,)
    assert tensor.to_sparse_csr().crow_indices().shape == (3,)
    assert torch.eye(2).to_sparse().is_sparse  # with its data


ALONE = (
    made_sparse, sparse_buffer, scalars_among_data, new_tensor, stream_by_name, default_type_of_the_card,
    kernel_from_source, extension_from_source, periods_of_frequencies, process_with_the_card,
)


def test_data_that_is_not_there_stands_in():  # of libraries that are imported where a session already runs
    code = ("from tests.tracing.test_constructs import *\n"
            "with Session(load_gpu('a100-sxm-80gb')).active(): data_that_is_not_there()")
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, cwd=Path(__file__).parents[2], check=False
    )
    if "Skipped" in done.stderr:
        pytest.skip("no torchvision")
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("construct", ALONE, ids=lambda construct: construct.__name__)
def test_a_construct_of_public_scripts_runs(construct):
    with Session(load_gpu("a100-sxm-80gb")).active():
        construct()


def weights_drawn_in_place_after_meta():  # FSDP2's example
    with torch.device("meta"):
        model = nn.Sequential(nn.Linear(64, 64), nn.LayerNorm(64))
    for layer in model:
        torch.distributed.fsdp.fully_shard(layer)
    torch.distributed.fsdp.fully_shard(model)
    model.to_empty(device="cuda")
    for layer in model:
        layer.reset_parameters()
    nn.init.trunc_normal_(model[0].weight)
    model(torch.empty(2, 64, device="cuda")).sum().backward()


def attention_of_distributed_tensors():  # fsdp_tp_example
    mesh = init_device_mesh("cuda", (4,))
    whole = torch.empty(2, 8, 32, 16, device="cuda", dtype=torch.bfloat16, requires_grad=True)
    query = dist.tensor.distribute_tensor(whole, mesh, [dist.tensor.Shard(1)])
    out = functional.scaled_dot_product_attention(query, query, query, is_causal=True)
    assert out.to_local().shape == (2, 2, 32, 16)
    out.to_local().sum().backward()


def groups_by_names_of_nccl():  # torchtitan, Lightning's tensor parallelism
    options = dist.ProcessGroupNCCL.Options()
    options.is_high_priority_stream = True
    half = dist.new_group([0, 1], pg_options=options)
    assert dist.get_process_group_ranks(dist.split_group(half, [[0], [1]])) == [1]
    assert dist.split_group(split_ranks=[[2, 3]]) is None
    dist.distributed_c10d._set_pg_timeout(dist.default_pg_timeout, half)
    mesh = init_device_mesh("cuda", (2, 2), mesh_dim_names=("dp", "tp"))
    dist.all_reduce(torch.empty(4, device="cuda"), group=mesh["tp"].get_group())


AMONG_RANKS = (weights_drawn_in_place_after_meta, attention_of_distributed_tensors, groups_by_names_of_nccl)


@pytest.mark.parametrize("construct", AMONG_RANKS, ids=lambda construct: construct.__name__)
def test_a_construct_of_scripts_of_many_ranks_runs(construct):
    with Session(load_gpu("a100-sxm-80gb"), world=parse_world(size=4, rank=1)).active():
        dist.init_process_group("nccl", device_id=torch.device("cuda", int(os.environ["LOCAL_RANK"])))
        construct()
