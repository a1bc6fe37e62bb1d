"""Step times of traces beside those that Qwen publishes of its fine-tuning script on one A100.

    python -m truth.traced_times FOLDER [--longest 2048]

FOLDER holds training.jsonl; rows without a packed base are asked. The network is a LLaMA of the same sizes (Qwen's own
code is no part of transformers): LoRA by PEFT or whole, under autocast, checkpointed, as finetune.py runs it. One
micro-batch is traced and counted as often as the script accumulates. Needs transformers and peft.
"""

from __future__ import annotations

import argparse
import json
import statistics
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

from truth.rows.huggingface import QWEN_RANK, SECONDS

CARD = "a100-sxm4-80gb"


class Case(NamedTuple):
    """One row [s]."""

    name: str
    predicted: float
    measured: float


def cases(folder: Path, longest: int) -> Iterator[Case]:
    for line in (folder / "training.jsonl").read_text().splitlines():
        row = json.loads(line)
        found = SECONDS.search(str(row.get("measured_raw") or ""))
        if row["group"] != "qwen_readme" or found is None or row["n_gpus"] > 1 or "Q-LoRA" in row["peft"]:
            continue
        if row["seq_len"] <= longest:
            yield Case(f"{row['model']} {row['seq_len']} {row['peft']}", predicted(row), float(found[1]))


def predicted(row: dict[str, Any]) -> float:
    """Seconds of a step: of one micro-batch so often, and of the optimizer."""
    import torch

    from vramcast.catalogue.gpus import load_gpu
    from vramcast.timing.roofline import OPTIMIZER, step_of
    from vramcast.tracing.session import Session

    session = Session(load_gpu(CARD))
    with session.active():
        model = network(row)
        optimizer = torch.optim.AdamW([each for each in model.parameters() if each.requires_grad])
        ids = torch.zeros(row["micro_batch"], row["seq_len"], dtype=torch.int64, device="cuda")
        for _ in range(2):
            with torch.autocast("cuda", torch.bfloat16):
                loss = model(input_ids=ids, labels=ids).loss
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            session.memory.mark_step()
    found = step_of(session.device.tape.last_step(), session.gpu)
    assert found is not None
    update = found.modules[OPTIMIZER]
    return row["grad_accum"] * (found.step_s - update) + update


def network(row: dict[str, Any]) -> Any:
    """The model of a row on the card."""
    import torch
    from peft import LoraConfig, get_peft_model
    from transformers import LlamaConfig, LlamaForCausalLM

    from vramcast.catalogue.models import load_model

    known = load_model(row["model"].lower())
    layer = known.main.layers[0]
    mixer: Any = layer.mixer
    channel: Any = layer.channel
    whole = row["peft"] == "none"
    with torch.device("cuda"):
        config = LlamaConfig(
            hidden_size=known.hidden, num_hidden_layers=known.num_layers, num_attention_heads=mixer.num_heads,
            intermediate_size=channel.width, vocab_size=known.vocab, use_cache=False, attention_bias=True,
            max_position_embeddings=8192, tie_word_embeddings=False,
        )
        model = LlamaForCausalLM(config).to(torch.float32 if whole else torch.bfloat16)
    model.gradient_checkpointing_enable()
    if whole:
        return model.train()
    model.enable_input_require_grads()
    saved = ["embed_tokens", "lm_head"] if "embedding" in row["peft"] else None
    adapter = LoraConfig(r=QWEN_RANK, lora_dropout=0.05, target_modules="all-linear", modules_to_save=saved)
    return get_peft_model(model, adapter).train()


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--longest", type=int, default=8192, help="sequences [positions]")
    asked = parser.parse_args()
    found = []
    for case in cases(asked.folder, asked.longest):
        found.append(case)
        print(f"{case.predicted / case.measured - 1:+7.1%}{case.predicted:>9.3f}{case.measured:>9.3f}  {case.name}")
    errors = sorted(abs(case.predicted / case.measured - 1) for case in found)
    under = sum(case.predicted < case.measured for case in found) / len(found)
    print(f"{len(found)} rows: median {statistics.median(errors):.1%}, largest {errors[-1]:.1%}, under {under:.0%}")


if __name__ == "__main__":
    main()
