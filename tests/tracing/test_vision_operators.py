"""torchvision can be imported, and its operators answer, where its compiled part does not fit this torch."""

from importlib.util import find_spec

import pytest
import torch

if find_spec("torchvision") is None:
    pytest.skip("torchvision is not installed", allow_module_level=True)

from vramcast.tracing.extensions.stand_ins import prepare_torchvision, with_stand_ins
from vramcast.tracing.targets import unfetched

prepare_torchvision()

import torchvision  # noqa: E402


def test_torchvision_has_its_operators():
    assert torchvision.extension._has_ops()
    assert "load_library" not in vars(torch.ops)


def test_other_libraries_that_do_not_load_fail_as_before():
    def load(path):
        raise OSError(path)

    with pytest.raises(OSError, match="other"):
        with_stand_ins(load)("/somewhere/other/_C.so")


def test_nms_is_assumed_to_keep_every_box(running):
    boxes = torch.empty(1000, 4, device="cuda")
    kept = torchvision.ops.nms(boxes, torch.empty(1000, device="cuda"), 0.5)
    assert kept.shape == (1000,) and kept.dtype is torch.int64
    names = {block.name: block.num_bytes for block in running.device.tape.blocks}
    assert names["overlaps of boxes"] == 1000 * 16 * 8


def test_regions_are_pooled_and_have_gradients(running):
    x = torch.empty(2, 16, 40, 40, device="cuda", requires_grad=True)
    regions = torch.empty(30, 5, device="cuda")
    out = torchvision.ops.roi_align(x, regions, (7, 7))
    assert out.shape == (30, 16, 7, 7)
    out.sum().backward()
    assert x.grad.shape == x.shape


def test_deformable_convolution_takes_columns_of_32_images_at_most(running):
    x = torch.empty(64, 8, 20, 20, device="cuda")
    weight, offset = torch.empty(4, 8, 3, 3, device="cuda"), torch.empty(64, 18, 18, 18, device="cuda")
    assert torchvision.ops.deform_conv2d(x, offset, weight).shape == (64, 4, 18, 18)
    names = {block.name: block.num_bytes for block in running.device.tape.blocks}
    assert names["columns"] == 8 * 9 * 32 * 18 * 18 * 4


@pytest.fixture
def no_network(monkeypatch):
    def fetch(*_args, **_kwargs):
        raise AssertionError("weights were fetched")

    monkeypatch.setattr(torchvision.models._api, "load_state_dict_from_url", fetch)


def test_a_backbone_is_frozen_as_its_weights_ask_without_them(no_network):
    with unfetched():
        trained = torchvision.models.detection.fasterrcnn_resnet50_fpn()
        untrained = torchvision.models.detection.fasterrcnn_resnet50_fpn(weights_backbone=None)

    def frozen(model):
        return sum(not parameter.requires_grad for parameter in model.parameters())

    assert frozen(trained) > frozen(untrained) == 0


def test_other_states_load_and_everything_is_put_back():
    load, fetch = torch.nn.Module.load_state_dict, torchvision.models._api.WeightsEnum.get_state_dict
    with unfetched():
        module = torch.nn.Linear(2, 2)
        module.load_state_dict({"weight": torch.ones(2, 2), "bias": torch.zeros(2)})
        assert module.weight.sum().item() == 4
        with pytest.raises(RuntimeError, match="Missing key"):
            module.load_state_dict({})
    assert torch.nn.Module.load_state_dict is load
    assert torchvision.models._api.WeightsEnum.get_state_dict is fetch
