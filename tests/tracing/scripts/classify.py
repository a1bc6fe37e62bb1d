"""Classification with torchvision: transforms, a warm-up of the head, evaluation, SGD."""

import torch
import torchvision
from torch.utils.data import DataLoader
from torchvision import transforms

device = "cuda:0"
transform = transforms.Compose([transforms.RandomHorizontalFlip(), transforms.ToTensor()])
data = torchvision.datasets.FakeData(512, (3, 64, 64), 10, transform)
model = torchvision.models.resnet18(num_classes=10).to(device)
optimizer = torch.optim.SGD(model.parameters(), 0.1, momentum=0.9, weight_decay=1e-4)
for epoch in range(10):
    model.train()
    for images, targets in DataLoader(data, 16, shuffle=True, num_workers=2, pin_memory=True):
        images, targets = images.to(device, non_blocking=True), targets.to(device, non_blocking=True)
        output = model(images)
        loss = torch.nn.functional.cross_entropy(output, targets, label_smoothing=0.1)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        _, pred = output.topk(5, 1, True, True)
        correct = pred.t().eq(targets.view(1, -1).expand_as(pred.t()))
        for k in (1, 5):
            print(f"top {k}: {correct[:k].reshape(-1).float().sum(0, keepdim=True).mul_(100 / 16).item():.2f}")
