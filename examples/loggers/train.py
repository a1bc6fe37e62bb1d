"""Steps of a GPT-2 beside their prediction: `python examples/loggers/train.py print|tensorboard|wandb|mlflow`.

Without a GPU it runs on a simulated one.
"""

import sys
from contextlib import nullcontext

import torch

import vramcast


def logger(name):
    """What to give as `log`."""
    if name == "tensorboard":
        from torch.utils.tensorboard import SummaryWriter

        return SummaryWriter("runs")
    if name == "wandb":
        import wandb

        return wandb.init(project="vramcast")
    if name == "mlflow":
        import mlflow

        return mlflow
    return lambda figures, step: print(step, {name: round(value, 3) for name, value in figures.items()})


def train(log):
    """Three steps of 8 samples of 1,024 tokens."""
    from transformers import GPT2Config, GPT2LMHeadModel

    predicted = vramcast.train("gpt2", gpus="h100-sxm-80gb", micro_batch=8, precision="amp-bf16")
    with vramcast.record_memory("run.sqlite", predicted=predicted, log=log) as memory:
        model = GPT2LMHeadModel(GPT2Config()).cuda()
        optimizer = torch.optim.AdamW(model.parameters())
        memory.attach(model, optimizer)
        for _ in range(3):
            ids = torch.randint(0, 50257, (8, 1024), device="cuda")
            with torch.autocast("cuda", dtype=torch.bfloat16):
                loss = model(input_ids=ids, labels=ids).loss
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            memory.step()


with nullcontext() if torch.cuda.is_available() else vramcast.simulate("h100-sxm-80gb"):
    train(logger(*(sys.argv[1:] or ["print"])))
