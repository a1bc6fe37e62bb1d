"""Never ends and never steps."""

import torch

total = torch.zeros(8, device="cuda")
while True:
    total += 1
