"""The traced peak of convolutions on the host against torch's profiler: layouts of oneDNN, columns of torch's own."""

import pytest

torch = pytest.importorskip("torch")

from torch import nn  # noqa: E402

from tests.tracing._cpu_runs import WITHIN, module, operator, real_peak, traced_peak, wide_vectors  # noqa: E402
from vramcast.tracing.vision_operators import prepare_torchvision  # noqa: E402

IMAGE = 8, 32, 28, 28
LAYERS = {
    "dense": (lambda: nn.Conv2d(32, 64, 3, padding=1), IMAGE),
    "channels that fill no block": (lambda: nn.Conv2d(13, 21, 3, padding=1), (8, 13, 28, 28)),
    "few channels": (lambda: nn.Conv2d(8, 32, 3, padding=1), (8, 8, 28, 28)),
    "image": (lambda: nn.Conv2d(3, 64, 7, stride=2, padding=3), (2, 3, 64, 64)),
    "patches": (lambda: nn.Conv2d(3, 64, 16, stride=16), (4, 3, 64, 64)),
    "one pixel": (lambda: nn.Conv2d(32, 64, 1), IMAGE),
    "one image": (lambda: nn.Conv2d(8, 16, 3, padding=1), (1, 8, 16, 16)),
    "strided": (lambda: nn.Conv2d(32, 64, 3, stride=2, padding=1), IMAGE),
    "dilated": (lambda: nn.Conv2d(32, 64, 3, dilation=2, padding=2), IMAGE),
    "groups": (lambda: nn.Conv2d(32, 64, 3, groups=4), IMAGE),
    "depthwise": (lambda: nn.Conv2d(32, 32, 3, groups=32, padding=1), IMAGE),
    "wide depthwise": (lambda: nn.Conv2d(32, 32, 7, groups=32, padding=3), IMAGE),
    "signal": (lambda: nn.Conv1d(32, 64, 5, padding=2), (8, 32, 200)),
    "one signal": (lambda: nn.Conv1d(32, 64, 5, padding=2), (1, 32, 200)),
    "strided behind another": (
        lambda: nn.Sequential(nn.Conv1d(1, 64, 10, stride=5), nn.GELU(), nn.Conv1d(64, 64, 3, stride=2)), (1, 1, 2000)
    ),
    "groups of signals": (lambda: nn.Conv1d(64, 64, 128, padding=64, groups=16), (2, 64, 24)),
    "volume": (lambda: nn.Conv3d(8, 16, 3, padding=1), (2, 8, 10, 16, 16)),
    "transposed": (lambda: nn.ConvTranspose2d(32, 16, 4, stride=2, padding=1), (8, 32, 14, 14)),
    "transposed volume": (lambda: nn.ConvTranspose3d(16, 8, 4, stride=2, padding=1), (2, 16, 6, 8, 8)),
    "behind one another": (
        lambda: nn.Sequential(nn.Conv2d(3, 32, 3), nn.ReLU(), nn.Conv2d(32, 48, 3, stride=2), nn.ReLU()), (8, 3, 32, 32)
    ),
}
RUNS = {
    **{f"{name}, training": module(*each) for name, each in LAYERS.items()},
    **{f"{name}, inference": module(*each, learns=False) for name, each in LAYERS.items()},
    "signal that lies channels last": operator(
        lambda x, weight: nn.functional.conv1d(x.mT, weight, padding=64, groups=16).mT, (2, 24, 64), (64, 4, 128)
    ),
    "channels last": operator(
        lambda x, weight: nn.functional.conv2d(x.to(memory_format=torch.channels_last), weight),
        (4, 16, 32, 32), (32, 16, 3, 3),
    ),
}
NETS = ("mobilenet_v3_small", "resnet18", "shufflenet_v2_x0_5", "squeezenet1_0")


@wide_vectors
@pytest.mark.parametrize("name", RUNS)
def test_traced_peak_is_the_profilers(name, one_thread):
    assert traced_peak(RUNS[name]) == pytest.approx(real_peak(RUNS[name]), rel=WITHIN)


@wide_vectors
@pytest.mark.parametrize("name", NETS)
def test_traced_peak_of_networks_is_the_profilers(name, one_thread):
    prepare_torchvision()
    models = pytest.importorskip("torchvision.models")
    run = module(lambda: getattr(models, name)(num_classes=10), (2, 3, 64, 64))
    assert traced_peak(run) == pytest.approx(real_peak(run), rel=WITHIN)
