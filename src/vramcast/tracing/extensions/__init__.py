"""Compiled modules that libraries call directly, by name."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from vramcast.tracing.environment import datasets, hub, rows, yolo
from vramcast.tracing.environment.graphs import graphs_of_pyg
from vramcast.tracing.environment.made_up import OPENS, led, tokenizers_of_files
from vramcast.tracing.environment.older import POSITIONS, names_of_pillow, no_bits
from vramcast.tracing.extensions import apex, transformer_engine
from vramcast.tracing.extensions.stand_ins import Extension, Guard, folder_of_log, graph_unread, unbuilt
from vramcast.tracing.rules import attention

EXTENSIONS: Final[Mapping[str, Extension]] = {
    **apex.EXTENSIONS, **transformer_engine.EXTENSIONS,
    "flash_attn_2_cuda": Extension("flash_attn", "flash_attn_interface.py", attention.COMPILED),
}
GUARDED: Final[Mapping[str, Guard]] = {
    **transformer_engine.GUARDED, **datasets.ANSWERS, **hub.ANSWERS,
    "torch.utils.cpp_extension": dict.fromkeys(("load", "load_inline"), unbuilt),
    "torch.utils.tensorboard._pytorch_graph": {"graph": graph_unread},
    "torch.utils.tensorboard.writer": {"FileWriter.__init__": folder_of_log},
    "huggingface_hub.hf_api": hub.lists_of_hub, "torch_geometric.data.dataset": graphs_of_pyg,
    "datasets.load": {"load_dataset": rows.rows_of_hub}, "datasets.arrow_dataset": rows.OF_FEW,
    "evaluate.loading": {"load": rows.metric_of_hub},
    "ultralytics.nn.tasks": {"torch_safe_load": yolo.checkpoint_of_yaml},
    "ultralytics.data.utils": {"check_det_dataset": yolo.images_of_yaml},
    **{module: {name: led} for module, name in OPENS.items()},
    "tokenizers": tokenizers_of_files, "PIL.Image": names_of_pillow, "PIL.ImageOps": {"posterize": no_bits},
    **POSITIONS,
}
LIBRARIES: Final = frozenset(extension.library for extension in EXTENSIONS.values())
"""Packages that keep what they found of a card when they were imported."""
ASKING: Final = LIBRARIES | {"xformers"}
"""Packages that ask for the card when they are imported."""
