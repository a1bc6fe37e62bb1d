"""What ran under each of the recordings: network, sizes, precision, loop."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final, NamedTuple

import torch
from torch.nn import functional

from truth.cs336 import large, own, staff
from truth.cs336.sizes import Sizes

Mark = Callable[[], None]
"""Called where the recording begins."""
Run = Callable[[torch.device, Mark], Any]
"""Runs what ran; what it returns is what was still alive at the end."""

SMALL_100: Final = Sizes(width=512, hidden=1344, layers=4, heads=16, context=100, batch=10)
SMALL_200: Final = SMALL_100._replace(context=200)
MEDIUM_128: Final = Sizes(width=1024, hidden=4096, layers=24, heads=16, context=128, batch=4)
MEDIUM_256: Final = MEDIUM_128._replace(context=256)
XL_128: Final = Sizes(width=2560, hidden=10_240, layers=32, heads=32, context=128, batch=4)
XL_512: Final = XL_128._replace(context=512)

LARGE_256: Final = Sizes(width=1600, hidden=6400, layers=48, heads=25, context=256, batch=4)

COMPILED_64: Final = Sizes(width=768, hidden=3072, layers=12, heads=12, context=64, batch=1, vocabulary=50_257)


class Recorded(NamedTuple):
    """One recording and what ran under it."""

    run: Run
    from_start: bool  # the recording begins before anything was allocated: peaks can be compared, too
    has_bar: bool = True
    alloc_conf: str = ""


def own_forward(sizes: Sizes) -> Run:
    """Three forwards whose results nobody keeps."""

    def run(device: torch.device, mark: Mark) -> Any:
        mark()
        model = own.Transformer(sizes, device)
        ids = torch.randint(0, sizes.vocabulary, (sizes.batch, sizes.context)).to(device)
        for _ in range(3):
            model(ids)
        return model, ids

    return run


def own_train(sizes: Sizes, amp: torch.dtype | None = None) -> Run:
    """Three steps; only the last position has a target."""

    def run(device: torch.device, mark: Mark) -> Any:
        mark()
        model = own.Transformer(sizes, device)
        optimizer = own.Adam(model.parameters())
        ids = torch.randint(0, sizes.vocabulary, (sizes.batch, sizes.context)).to(device)
        targets = torch.randint(0, sizes.vocabulary, (sizes.batch,)).to(device)
        logits = loss = None
        with torch.autocast("cuda", dtype=amp or torch.bfloat16, enabled=amp is not None):  # kept over all steps
            for _ in range(3):
                optimizer.zero_grad()
                logits = model(ids)
                loss = own.cross_entropy(own.last_position(logits), targets)
                loss.backward()
                optimizer.step()
        return model, optimizer, ids, targets, logits, loss

    return run


def staff_forward(sizes: Sizes) -> Run:
    """One forward without gradients, after another."""

    def run(device: torch.device, mark: Mark) -> Any:
        model = staff.Transformer(sizes, device)
        ids = torch.randint(0, sizes.vocabulary, (sizes.batch, sizes.context), device=device)
        with torch.no_grad():
            model(ids)
            mark()
            model(ids)
        return model, ids

    return run


def staff_train(sizes: Sizes) -> Run:
    """One step with the course's optimizer, after another. The gradients of the step before are gone."""

    def run(device: torch.device, mark: Mark) -> Any:
        model = staff.Transformer(sizes, device)
        optimizer = staff.AdamW(model.parameters())
        ids, targets = (
            torch.randint(0, sizes.vocabulary, (sizes.batch, sizes.context), device=device) for _ in range(2)
        )

        def step() -> Any:
            logits = model(ids)
            loss = staff.cross_entropy(logits, targets)
            loss.backward()
            optimizer.step()
            return logits, loss

        step()
        optimizer.zero_grad()
        mark()
        return model, optimizer, ids, targets, step()

    return run


def staff_train_amp(sizes: Sizes) -> Run:
    """One step with torch's AdamW and loss, after another; gradients are let go in the step."""

    def run(device: torch.device, mark: Mark) -> Any:
        model = staff.Transformer(sizes, device)
        optimizer = torch.optim.AdamW(model.parameters())
        ids, targets = (
            torch.randint(0, sizes.vocabulary, (sizes.batch, sizes.context), device=device) for _ in range(2)
        )

        def step() -> None:
            optimizer.zero_grad()
            with torch.autocast("cuda", dtype=torch.bfloat16):
                logits = model(ids)
                loss = functional.cross_entropy(logits.float().view(-1, sizes.vocabulary), targets.view(-1))
            loss.backward()
            optimizer.step()

        step()
        mark()
        step()
        return model, optimizer, ids, targets

    return run


def large_forward_amp(sizes: Sizes) -> Run:
    """One forward that autograd records, after another. The recording ends when the logits go, their graph is there."""

    def run(device: torch.device, mark: Mark) -> Any:
        model = large.Transformer(sizes, device)
        ids = torch.randint(0, sizes.vocabulary, (sizes.batch, sizes.context), device=device)
        with torch.autocast("cuda", dtype=torch.bfloat16):
            model(ids)
        mark()
        with torch.autocast("cuda", dtype=torch.bfloat16):
            graph = model(ids).grad_fn
        return model, ids, graph

    return run


def compiled_train(sizes: Sizes) -> Run:
    """One step of a compiled network, after another, into the same gradients."""

    def run(device: torch.device, mark: Mark) -> Any:
        model = torch.compile(staff.Transformer(sizes, device, staff.LeavingAttention))
        optimizer = staff.AdamW(model.parameters())

        def step() -> Any:
            size = sizes.batch, sizes.context
            ids, targets = (torch.randint(0, sizes.vocabulary, size, device=device) for _ in range(2))
            loss = staff.cross_entropy(model(ids), targets)
            loss.backward()
            optimizer.step()
            return ids, targets, loss

        step()
        mark()
        return model, optimizer, step()

    return run


RECORDED: Final[dict[str, Recorded]] = {
    "small_ctx100_forward_fp32": Recorded(own_forward(SMALL_100), from_start=True),
    "small_ctx100_train_step_fp32": Recorded(own_train(SMALL_100), from_start=True),
    "small_ctx200_train_step_bf16": Recorded(own_train(SMALL_200, torch.bfloat16), from_start=True),
    "medium_ctx128_train_step": Recorded(staff_train(MEDIUM_128), from_start=False),
    "medium_ctx256_inference": Recorded(staff_forward(MEDIUM_256), from_start=False),
    "xl_ctx128_forward_fp32_expandable": Recorded(staff_forward(XL_128), from_start=False),
    "xl_ctx512_forward_fp32": Recorded(staff_forward(XL_512), from_start=False),
    "large_forward_bf16": Recorded(large_forward_amp(LARGE_256), from_start=False, has_bar=False),
    "compiled_train_step": Recorded(compiled_train(COMPILED_64), from_start=False, has_bar=False),
    "xl_ctx128_train_step_bf16": Recorded(staff_train_amp(XL_128), from_start=False),
}
