"""Compiled modules that libraries call directly, by name."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from vramcast.tracing.environment.datasets import digits, folders, folders_of_timm, pictures, small_images
from vramcast.tracing.environment.graphs import graphs_of_pyg
from vramcast.tracing.environment.hub import (
    downloads,
    folders_without_weights,
    hub_of_files,
    lists_of_hub,
    pipelines_of_files,
    plain_tokenizers,
    snapshots_of_hub,
    vocabulary_of_pieces,
    without_pretrained,
)
from vramcast.tracing.environment.made_up import OPENS, opened_in_c
from vramcast.tracing.environment.rows import metrics_of_hub, rows_of_hub
from vramcast.tracing.environment.yolo import checkpoints_of_yaml, images_of_yaml
from vramcast.tracing.extensions import apex, transformer_engine
from vramcast.tracing.extensions.stand_ins import Extension, Guard, graphs_unread, unbuilt
from vramcast.tracing.rules import attention

EXTENSIONS: Final[Mapping[str, Extension]] = {
    **apex.EXTENSIONS, **transformer_engine.EXTENSIONS,
    "flash_attn_2_cuda": Extension("flash_attn", "flash_attn_interface.py", attention.COMPILED),
}
GUARDED: Final[Mapping[str, Guard]] = {
    **transformer_engine.GUARDED, "torch.utils.cpp_extension": unbuilt,
    "torch.utils.tensorboard._pytorch_graph": graphs_unread,
    "huggingface_hub.file_download": hub_of_files, "huggingface_hub.hf_api": lists_of_hub,
    "huggingface_hub._snapshot_download": snapshots_of_hub,
    "timm.models._builder": without_pretrained, "timm.data.readers.reader_factory": folders_of_timm,
    "diffusers.pipelines.pipeline_utils": pipelines_of_files,
    "transformers.modeling_utils": folders_without_weights,
    "transformers.tokenization_utils_base": plain_tokenizers, "torchvision.datasets.mnist": digits,
    "torchvision.datasets.cifar": small_images, "torchvision.datasets.folder": folders,
    "torchvision.datasets": pictures, "torchvision.datasets.utils": downloads,
    "datasets.load": rows_of_hub, "evaluate.loading": metrics_of_hub,
    "ultralytics.nn.tasks": checkpoints_of_yaml, "ultralytics.data.utils": images_of_yaml,
    "torch_geometric.data.dataset": graphs_of_pyg, "tiktoken.load": vocabulary_of_pieces,
    **dict.fromkeys(OPENS, opened_in_c),
}
LIBRARIES: Final = frozenset(extension.library for extension in EXTENSIONS.values())
"""Packages that keep what they found of a card when they were imported."""
ASKING: Final = LIBRARIES | {"xformers"}
"""Packages that ask for the card when they are imported."""
