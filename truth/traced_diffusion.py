"""Diffusion, traced, against measured runs: `python -m truth.traced_diffusion FILE... [--rows]`.

Rows of training whose network, adapter, shapes and optimizer are known are traced: two steps on precomputed latents and
text embeddings; rows of inference by `truth.traced_pipelines`. All other diffusion rows are counted with the reason.
No bar: the scripts are known by their tables alone. A row whose peak stood before training began says nothing about
the step; it is counted, too.
"""

from __future__ import annotations

import argparse
import json
import logging
import signal
import statistics
import sys
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from truth import traced_pipelines
from truth.traced_pipelines import Unfit
from vramcast.units import GIB

if TYPE_CHECKING:
    import torch

STEPS: Final = 2
LEAST_RISE_GIB: Final = 0.5
"""Above what the row measured before training began."""
CLIPPED_NORM: Final = 1.0
LIMIT_S: Final = 30
INFERENCE: Final = "diffusion_table"

Row = Mapping[str, Any]


class Run(NamedTuple):
    """A row's training."""

    build: Callable[[], torch.nn.Module]  # with its adapter, on the card
    batch: Callable[[int], dict[str, Any]]  # what the forward is given
    autocast: torch.dtype | None = None


def main(arguments: Sequence[str] | None = None) -> int:
    """The command line."""
    parser = argparse.ArgumentParser(prog="python -m truth.traced_diffusion")
    parser.add_argument("files", type=Path, nargs="+")
    parser.add_argument("--rows", action="store_true", help="every row that is traced")
    options = parser.parse_args(arguments)
    refused: Counter[str] = Counter()
    errors: dict[str, list[float]] = {}
    for number, row in (found for file in options.files for found in diffusion_rows(file)):
        is_training = "measured_gib" in row
        group = row["group"] if is_training else f"{row['source_class']} (inference)"
        try:
            predicted = predict(row) if is_training else traced_pipelines.predict(row)
        except Unfit as error:
            refused[f"{group}: {error}"] += 1
            continue
        measured = row["measured_gib"] if is_training else row["value"]
        relative = predicted / measured - 1
        errors.setdefault(group, []).append(relative)
        if options.rows:
            what = _training(row) if is_training else f"{row['model']} {row['quantity']}, {row['notes']}"
            print(f"{relative:>+8.1%}  row {number:<4}{predicted:>8.2f} for {measured:>7.2f}  {what}")
    for group, found in errors.items():
        absolute = [abs(error) for error in found]
        print(f"{group:<28}{len(found):>4} rows  median {statistics.median(absolute):.1%}  largest {max(absolute):.1%}")
    for reason, count in refused.items():
        print(f"    refused {count}: {reason}")
    return 0


def _training(row: Row) -> str:
    peft = row["peft"] if len(row["peft"]) < 20 else json.loads(row["peft"])["peft_type"]
    return f"{row['model']} {peft}, batch {row['micro_batch']}, {row['recompute']}"


def diffusion_rows(file: Path) -> Iterator[tuple[int, Row]]:
    """Rows of diffusion with their line numbers."""
    for number, line in enumerate(file.read_text(encoding="utf-8").splitlines(), start=1):
        row = json.loads(line)
        if row.get("domain") == "diffusion" or row.get("source_class") == INFERENCE:
            yield number, row


def predict(row: Row) -> float:
    """The level that the row measured [GiB].

    Raises: Unfit
    """
    from vramcast.catalogue.gpus import load_gpu
    from vramcast.tracing.session import Session

    make = GROUPS.get(row["group"])
    if make is None:
        raise Unfit("the table leaves out shapes, adapters or what else is on the card")
    run = make(row)
    session = Session(load_gpu(CARDS[row["gpu"]]))
    with limited(), session.active():
        train(run, row["micro_batch"], is_recomputed=row["recompute"] != "none")
    allocator = session.device.allocator
    is_reserved = "reserved" in row["metric"]
    return (allocator.peak_reserved_bytes if is_reserved else allocator.peak_allocated_bytes) / GIB


@contextmanager
def limited() -> Iterator[None]:
    """Within: a run that takes too long ends; some adapters factorise real weights on the host when they are built.

    Raises: Unfit
    """

    def end(*_: object) -> None:
        raise Unfit(f"takes longer than {LIMIT_S} s of the processor")

    before = signal.signal(signal.SIGVTALRM, end)
    signal.setitimer(signal.ITIMER_VIRTUAL, LIMIT_S)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_VIRTUAL, 0)
        signal.signal(signal.SIGVTALRM, before)


def train(run: Run, batch: int, *, is_recomputed: bool) -> None:
    """The steps."""
    import torch

    model = run.build()
    network = model.get_base_model() if hasattr(model, "get_base_model") else model
    if is_recomputed:
        network.enable_gradient_checkpointing()
    trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
    optimizer = torch.optim.AdamW(trained)
    for _ in range(STEPS):
        given = run.batch(batch)
        with torch.autocast("cuda", dtype=run.autocast, enabled=run.autocast is not None):
            prediction = model(**given, return_dict=False)[0]
        target = torch.randn_like(given["hidden_states"])
        torch.nn.functional.mse_loss(prediction.float(), target.float()).backward()
        torch.nn.utils.clip_grad_norm_(trained, CLIPPED_NORM)
        optimizer.step()
        optimizer.zero_grad()


def _flux2_klein(row: Row) -> Run:
    """FLUX.2 klein base 4B, 512 x 512, with any adapter of PEFT; the parameters are those that the rows state."""
    import torch

    def build() -> torch.nn.Module:
        from diffusers import Flux2Transformer2DModel

        model = Flux2Transformer2DModel(
            num_layers=5, num_single_layers=20, num_attention_heads=24, joint_attention_dim=7680, guidance_embeds=False
        ).to("cuda", torch.bfloat16)
        if not row["peft"].startswith("{"):
            return model
        return _adapted(model, json.loads(row["peft"]))

    def batch(size: int) -> dict[str, Any]:
        pixels, words = (512 // 16) ** 2, 512
        half = {"dtype": torch.bfloat16, "device": "cuda"}
        return {
            "hidden_states": torch.randn(size, pixels, 128, **half),
            "encoder_hidden_states": torch.randn(size, words, 7680, **half),
            "timestep": torch.rand(size, **half),
            "img_ids": torch.zeros(pixels, 4, device="cuda"), "txt_ids": torch.zeros(words, 4, device="cuda"),
        }

    return Run(build, batch)


def _adapted(model: torch.nn.Module, values: dict[str, Any]) -> torch.nn.Module:
    import peft

    if values["peft_type"] in COMPILES:
        raise Unfit(f"{values['peft_type']} compiles a CUDA kernel of its own")
    try:
        config = peft.get_peft_config(values)
        return peft.get_peft_model(model, config)
    except (KeyError, TypeError, ValueError) as error:
        raise Unfit(f"PEFT {peft.__version__} cannot build {values['peft_type']}: {str(error)[:100]}") from None


def _cogvideox(row: Row) -> Run:
    """CogVideoX with LoRA of its attention, 49 frames of 480 x 720, under Accelerate's mixed precision."""
    import torch

    if row["optimizer"] != "AdamW":
        raise Unfit(f"its optimizer, {row['optimizer']}, is not part of torch")
    before = row.get("memory_before_training_gib")
    if before is None or row["measured_gib"] < before + LEAST_RISE_GIB:
        raise Unfit("its peak stood before training began")
    if not row["peft"].startswith("LoRA rank "):
        raise Unfit("its rank is not stated")
    rank, is_5b = int(row["peft"].split()[-1]), row["model"].endswith("5b")
    dtype = torch.bfloat16 if is_5b else torch.float16

    def build() -> torch.nn.Module:
        import peft
        from diffusers import CogVideoXTransformer3DModel

        sizes = {"num_attention_heads": 48, "num_layers": 42, "use_rotary_positional_embeddings": True} if is_5b else {}
        model = CogVideoXTransformer3DModel(**sizes).to("cuda", dtype)
        model.requires_grad_(False)
        model.add_adapter(peft.LoraConfig(r=rank, lora_alpha=rank, target_modules=["to_k", "to_q", "to_v", "to_out.0"]))
        return model

    def batch(size: int) -> dict[str, Any]:
        frames, height, width, half = 13, 60, 90, {"dtype": dtype, "device": "cuda"}
        tokens = frames * height * width // 4
        angles = tuple(torch.randn(tokens, 64, device="cuda") for _ in range(2)) if is_5b else None
        return {
            "hidden_states": torch.randn(size, frames, 16, height, width, **half),
            "encoder_hidden_states": torch.randn(size, 226, 4096, **half),
            "timestep": torch.zeros(size, dtype=torch.int64, device="cuda"), "image_rotary_emb": angles,
        }

    return Run(build, batch, autocast=dtype)


GROUPS: Final[Mapping[str, Callable[[Row], Run]]] = {
    "peft_method_comparison": _flux2_klein, "finetrainers_cogvideox": _cogvideox,
}
COMPILES: Final = frozenset({"BOFT"})
CARDS: Final = {"NVIDIA L40S": "l40s", "A100-80GB": "a100-sxm4-80gb"}


if __name__ == "__main__":
    from vramcast.tracing.extensions.stand_ins import prepare_torchvision

    logging.disable(logging.WARNING)  # of diffusers, about the types it would rather load
    prepare_torchvision()
    sys.exit(main())
