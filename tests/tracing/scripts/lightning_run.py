"""Lightning: automatic optimization, mixed precision, validation, checkpoints."""

import sys

import lightning as L
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


class Classifier(L.LightningModule):
    def __init__(self):
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(256, 1024), nn.ReLU(), nn.Dropout(0.1), nn.Linear(1024, 10))

    def training_step(self, batch, index):
        inputs, targets = batch
        loss = nn.functional.cross_entropy(self.layers(inputs), targets)
        self.log("loss", loss, prog_bar=True)
        return loss

    def validation_step(self, batch, index):
        inputs, targets = batch
        logits = self.layers(inputs)
        self.log("accuracy", (logits.argmax(-1) == targets).float().mean())

    def configure_optimizers(self):
        return torch.optim.AdamW(self.parameters(), lr=1e-3)


def loader():
    return DataLoader(TensorDataset(torch.randn(512, 256), torch.randint(0, 10, (512,))), batch_size=32, num_workers=2)


devices, strategy = (int(sys.argv[1]), sys.argv[2]) if len(sys.argv) > 1 else (1, "auto")
trainer = L.Trainer(
    accelerator="gpu", devices=devices, strategy=strategy, precision="bf16-mixed", max_epochs=100,
    limit_train_batches=2, limit_val_batches=2,
    gradient_clip_val=1.0 if devices == 1 else None, default_root_dir="lightning-out",
)
trainer.fit(Classifier(), loader(), loader())
