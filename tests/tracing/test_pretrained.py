"""Builders that ask for trained weights build what those would fill, and fetch nothing."""

from importlib.util import find_spec

import pytest
import torch

if find_spec("torchvision") is None:
    pytest.skip("torchvision is not installed", allow_module_level=True)

from vramcast.tracing.targets import unfetched
from vramcast.tracing.vision_operators import prepare_torchvision

prepare_torchvision()

import torchvision  # noqa: E402


@pytest.fixture(autouse=True)
def no_network(monkeypatch):
    def fetch(*_args, **_kwargs):
        raise AssertionError("weights were fetched")

    monkeypatch.setattr(torchvision.models._api, "load_state_dict_from_url", fetch)


def test_a_backbone_is_frozen_as_its_weights_ask_without_them():
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
