"""Small modules that tests name as targets."""

import torch
from torch import nn


class Block(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.up = nn.Linear(width, 4 * width)
        self.down = nn.Linear(4 * width, width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.down(torch.relu(self.up(x)))


class Stack(nn.Module):
    """Blocks that repeat."""

    def __init__(self, width: int = 256, depth: int = 4) -> None:
        super().__init__()
        self.layers = nn.ModuleList(Block(width) for _ in range(depth))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for layer in self.layers:
            x = layer(x)
        return x


class Attends(nn.Module):
    """Two named inputs, one of integers."""

    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Embedding(100, 32)

    def forward(self, ids: torch.Tensor, weights: torch.Tensor) -> dict[str, torch.Tensor]:
        return {"loss": (self.table(ids) * weights[..., None]).mean()}


class Picky(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        raise ValueError("this never works")


def build(width: int) -> Stack:
    return Stack(width)


def half(output: torch.Tensor) -> torch.Tensor:
    return output.mean() / 2


def nothing() -> int:
    return 3


READY = Stack(64, 2)


class Sgd(torch.optim.SGD):
    def __init__(self, params: object) -> None:
        super().__init__(params, lr=0.5)
