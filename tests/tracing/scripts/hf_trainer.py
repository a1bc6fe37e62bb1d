"""Hugging Face's Trainer: mixed precision, checkpointed activations, evaluation, checkpoints, a callback, FSDP."""

import sys

import numpy as np
import torch
from transformers import GPT2Config, GPT2LMHeadModel, Trainer, TrainerCallback, TrainingArguments


class Tokens(torch.utils.data.Dataset):
    def __len__(self):
        return 4000

    def __getitem__(self, index):
        ids = torch.from_numpy(np.random.randint(0, 1000, 128))
        return {"input_ids": ids, "labels": ids.clone(), "attention_mask": torch.ones_like(ids)}


class Printer(TrainerCallback):
    def on_log(self, args, state, control, logs=None, **kwargs):
        print("log", state.global_step, logs)


def accuracy(prediction):
    logits, labels = prediction
    return {"accuracy": float((np.argmax(logits, -1) == labels).mean())}


model = GPT2LMHeadModel(GPT2Config(vocab_size=1000, n_embd=128, n_layer=2, n_head=4, n_positions=256))
is_sharded = "fsdp" in sys.argv
sharding = {"fsdp": True, "fsdp_config": {"transformer_layer_cls_to_wrap": ["GPT2Block"]}} if is_sharded else {}
args = TrainingArguments(
    output_dir=sys.argv[1] if len(sys.argv) > 1 else "hf-out", per_device_train_batch_size=8,
    per_device_eval_batch_size=4, gradient_accumulation_steps=2, bf16=True, gradient_checkpointing=not is_sharded,
    logging_steps=1, eval_strategy="steps", eval_steps=1, save_steps=1, save_total_limit=1, num_train_epochs=1,
    report_to=[], dataloader_num_workers=2, max_grad_norm=1.0, optim="adamw_torch_fused", **sharding,
)
trainer = Trainer(
    model=model, args=args, train_dataset=Tokens(), eval_dataset=torch.utils.data.Subset(Tokens(), range(8)),
    compute_metrics=accuracy, callbacks=[Printer()],
)
trainer.train()
