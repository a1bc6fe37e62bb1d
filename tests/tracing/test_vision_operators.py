"""torchvision can be imported, and its operators answer, where its compiled part does not fit this torch."""

from importlib.util import find_spec

import pytest
import torch

if find_spec("torchvision") is None:
    pytest.skip("torchvision is not installed", allow_module_level=True)

from vramcast.catalogue.gpus import load_gpu
from vramcast.tracing.session import Session
from vramcast.tracing.vision_operators import prepare_torchvision, with_stand_ins

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


def test_nms_is_assumed_to_keep_every_box():
    session = Session(load_gpu("a100-sxm-80gb"))
    with session.active():
        boxes = torch.empty(1000, 4, device="cuda")
        kept = torchvision.ops.nms(boxes, torch.empty(1000, device="cuda"), 0.5)
        assert kept.shape == (1000,) and kept.dtype is torch.int64
    names = {block.name: block.num_bytes for block in session.device.tape.blocks}
    assert names["overlaps of boxes"] == 1000 * 16 * 8


def test_regions_are_pooled_and_have_gradients():
    session = Session(load_gpu("a100-sxm-80gb"))
    with session.active():
        x = torch.empty(2, 16, 40, 40, device="cuda", requires_grad=True)
        regions = torch.empty(30, 5, device="cuda")
        out = torchvision.ops.roi_align(x, regions, (7, 7))
        assert out.shape == (30, 16, 7, 7)
        out.sum().backward()
        assert x.grad.shape == x.shape


def test_deformable_convolution_takes_columns_of_32_images_at_most():
    session = Session(load_gpu("a100-sxm-80gb"))
    with session.active():
        x = torch.empty(64, 8, 20, 20, device="cuda")
        weight, offset = torch.empty(4, 8, 3, 3, device="cuda"), torch.empty(64, 18, 18, 18, device="cuda")
        assert torchvision.ops.deform_conv2d(x, offset, weight).shape == (64, 4, 18, 18)
    names = {block.name: block.num_bytes for block in session.device.tape.blocks}
    assert names["columns"] == 8 * 9 * 32 * 18 * 18 * 4


def test_segmentation_trains():
    session = Session(load_gpu("a100-sxm-80gb"))
    with session.active():
        with torch.device("cuda"):
            model = torchvision.models.segmentation.lraspp_mobilenet_v3_large(weights_backbone=None)
        model(torch.empty(2, 3, 64, 64, device="cuda"))["out"].sum().backward()
        assert all(weight.grad is not None for weight in model.parameters())
