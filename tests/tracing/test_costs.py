"""What operators compute and move, and a traced step's time beside that of `vramcast train`."""

import pytest
import torch

from vramcast.catalogue.gpus import load_gpu
from vramcast.domain.trace_job import TraceJob
from vramcast.estimate.step_time import step_time
from vramcast.question.build import build_job
from vramcast.sources.resolve import resolve_checkpoint
from vramcast.tracing.run import trace_job

CUDA = {"device": "cuda"}


def last(session):
    device = session.device
    return device.tape.costs[device.tape.operations[-1]]


@pytest.mark.parametrize(("run", "kind", "flops", "moved"), [
    (lambda x: x @ x, "product", 2 * 64**3, 3 * 64 * 64 * 4),
    (lambda x: x + x[0], "pointwise", 0, (2 * 64 * 64 + 64) * 4),
    (lambda x: x.add_(1), "pointwise", 0, 2 * 64 * 64 * 4),
    (lambda x: x.zero_(), "pointwise", 0, 64 * 64 * 4),
    (lambda x: x + x[:1].expand(64, 64), "pointwise", 0, (2 * 64 * 64 + 64 * 64) * 4),
    (lambda x: x[torch.zeros(3, dtype=torch.int64, **CUDA)], "pointwise", 0, 3 * 8 + 2 * 3 * 64 * 4),
    (lambda x: x.cpu(), "wait", 0, 0),
])
def test_an_operator_reads_its_arguments_and_writes_its_results(running, run, kind, flops, moved):
    x = torch.empty(64, 64, **CUDA)
    run(x)
    found = last(running)
    assert (found.kind, found.flops, found.num_bytes) == (kind, flops, moved)


@pytest.mark.parametrize("precision", ["tf32", "ieee"])
def test_the_precision_of_products_is_read_as_torch_is_told_it_now(running, precision):
    x, image = torch.empty(64, 64, **CUDA), torch.empty(1, 64, 8, 8, **CUDA)
    kernel = torch.empty(64, 64, 3, 3, **CUDA)
    kinds = ("matmul", "conv")
    before = [torch._C._get_fp32_precision_getter("cuda", kind) for kind in kinds]
    try:
        for kind in kinds:  # what another test said of one kind stands before what is said of all
            torch._C._set_fp32_precision_setter("cuda", kind, "none")
        torch.backends.fp32_precision = precision
        for run in (lambda: x @ x, lambda: torch.conv2d(image, kernel)):
            run()
            assert last(running).dtype == {"tf32": "tf32", "ieee": "fp32"}[precision]
    finally:
        torch.backends.fp32_precision = "none"
        for kind, said in zip(kinds, before, strict=True):
            torch._C._set_fp32_precision_setter("cuda", kind, said)


def test_masked_attention_computes_half(running):
    q = torch.empty(1, 8, 256, 64, dtype=torch.bfloat16, **CUDA)
    flops = []
    for causal in (False, True):
        torch.nn.functional.scaled_dot_product_attention(q, q, q, is_causal=causal)
        flops.append(last(running).flops)
    assert flops[0] == 2 * flops[1] == 4 * 8 * 256 * 256 * 64


@pytest.mark.parametrize("in_a_row", [False, True])
def test_attention_called_directly_pairs_tokens_not_heads(running, in_a_row):
    q = torch.empty(*((600,) if in_a_row else (2, 300)), 8, 64, dtype=torch.bfloat16, requires_grad=True, **CUDA)
    offsets = torch.tensor([0, 300, 600], dtype=torch.int32).cuda() if in_a_row else None
    out = torch.ops.aten._flash_attention_forward(q, q, q, offsets, offsets, 300, 300, 0.0, True, False)[0]
    forward = last(running)
    assert forward.flops == 4 * 2 * 8 * 300 * 300 * 64 / 2
    out.sum().backward()
    costs = running.device.tape.costs
    backward = [each for each in map(costs.__getitem__, running.device.tape.operations) if each.kind == "attention"][-1]
    assert backward.flops == 2.5 * forward.flops


def test_products_and_updates_of_a_traced_step_take_as_long_as_those_of_a_built_one():
    card = load_gpu("a100-sxm4-80gb")
    traced = trace_job(TraceJob(
        target="transformers:llama-3.2-1b", gpu=card, batch=1, seq_len=2048, dtype="bf16", optimizer="adamw-fused",
    )).answer.traced_time
    built = step_time(build_job({
        "model": "llama-3.2-1b", "gpus": "1xa100-sxm4-80gb", "engine": "huggingface", "precision": "bf16",
        "seq-len": "2048", "micro-batch": "1", "optimizer": "adamw", "engine-option": ("max_grad_norm=0",),
    }, resolve=resolve_checkpoint))
    assert traced is not None
    assert traced.seconds["products"] == pytest.approx(built.seconds["products"], rel=0.03)
    assert traced.seconds["attention"] == pytest.approx(built.seconds["attention"], rel=0.03)
    assert traced.step_s == pytest.approx(built.step_s, rel=0.15)
    assert sum(traced.seconds.values()) == pytest.approx(sum(traced.modules.values())) == pytest.approx(traced.step_s)
