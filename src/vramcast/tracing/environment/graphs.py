"""Data sets of PyG whose files cannot be fetched: graphs of the sizes that the data set's own documentation tells.

A class of `torch_geometric.datasets` has a table of its data sets' sizes, which is read here: nodes, edges, features
and classes of one graph, or, for collections that take their features from labels (TUDataset), of each of many.
[pyg] torch_geometric datasets/planetoid.py, data/dataset.py `_download`, `_process`, data/in_memory_dataset.py `load`
"""

from __future__ import annotations

import re
from importlib import import_module
from itertools import pairwise
from types import ModuleType
from typing import Any, Final

import torch

from vramcast.errors import Note
from vramcast.tracing.simulation import running

STANDS_IN: Final = "{}: its files are not there; a graph of {:,} nodes, {:,} edges, {} features and {} classes stand in"
MANY_STAND_IN: Final = STANDS_IN.replace("a graph", "graphs")
CELL: Final = re.compile(r"^ *(\*)? *- +(\S+)$", re.MULTILINE)
PLAIN: Final = ("#nodes", "#edges", "#features", "#classes")
MOST_GRAPHS: Final = 512  # of a collection: loaders draw batches of far fewer
PER_CLASS, VALIDATION, TEST = 20, 500, 1000
"""Nodes of the public split of citation networks, as Planetoid's own constructor has them."""

Sizes = dict[str, str]


def graphs_of_pyg(module: ModuleType) -> None:
    """`torch_geometric.data.dataset`: what is not fetched is made."""
    kind: Any = vars(module)["Dataset"]
    files: Any = import_module("torch_geometric.io.fs")
    download, process, read = kind._download, kind._process, files.torch_load
    made: dict[str, Any] = {}

    def downloaded(self: Any) -> None:
        simulation = running()
        try:
            download(self)
        except OSError:
            sizes = _documented(type(self), getattr(self, "name", ""))
            if simulation is None or sizes is None:
                raise
            collection, counts = "#graphs" in sizes, [_count(sizes[column]) for column in PLAIN]
            name = getattr(self, "name", None) or type(self).__name__
            simulation.stood_in.append(name)
            simulation.assumptions.note(
                Note(MANY_STAND_IN if collection else STANDS_IN, name, *counts), simulation.origins.place()
            )
            made.update(dict.fromkeys(self.processed_paths, _graphs(self, sizes, counts)))

    def processed(self: Any) -> None:
        if self.processed_paths[0] not in made:
            process(self)

    kind._download, kind._process = downloaded, processed
    files.torch_load = lambda path, *args, **how: made[path] if path in made else read(path, *args, **how)


def _documented(kind: type, name: str) -> Sizes | None:
    """The row of a data set in the table of its class; None where that says less than is needed."""
    cells = CELL.findall(kind.__doc__ or "")
    starts = [number for number, (star, _) in enumerate(cells) if star]
    rows = [[text for _, text in cells[a:b]] for a, b in pairwise((*starts, len(cells)))]
    if len(rows) < 2 or not set(PLAIN) <= set(rows[0]):
        return None
    tables = [dict(zip(rows[0], row, strict=False)) for row in rows[1:] if len(row) >= len(rows[0])]
    found = [sizes for sizes in tables if sizes.get("Name", name).lower() == name.lower()]
    takes_labels = hasattr(kind, "num_node_labels")
    return next((sizes for sizes in found if ("#graphs" in sizes) == takes_labels), None)


def _count(text: str) -> int:
    return round(float(text.strip("~").replace(",", "")))


def _graphs(dataset: Any, sizes: Sizes, counts: list[int]) -> tuple[Any, ...]:
    """What `torch.load` of a processed file gives [pyg `InMemoryDataset.save`, `TUDataset.process`]."""
    data: Any = import_module("torch_geometric.data")
    nodes, edges, features, classes = counts
    index = torch.arange(edges)
    shared = {"edge_index": torch.stack([index % nodes, (index * 7 + 1) % nodes])}
    shared |= {"x": torch.zeros(nodes, features)} if features else {"num_nodes": nodes}
    if "#graphs" in sizes:
        count = min(_count(sizes["#graphs"]), MOST_GRAPHS)
        graphs = [data.Data(**shared, y=torch.tensor([number % classes])) for number in range(count)]
        collated, slices = dataset.collate(graphs)
        labels = {"num_node_labels": features, "num_edge_labels": 0, "num_node_attributes": 0, "num_edge_attributes": 0}
        return collated.to_dict(), slices, labels, data.Data
    number = torch.arange(nodes)
    training = min(PER_CLASS * classes, nodes) if hasattr(dataset, "split") else nodes * 3 // 5
    validation = training + min(VALIDATION, (nodes - training) // 2)
    one = data.Data(
        **shared, y=number % classes, train_mask=number < training,
        val_mask=(number >= training) & (number < validation), test_mask=number >= max(validation, nodes - TEST),
    )
    collated, slices = dataset.collate([one])
    return collated.to_dict(), slices, data.Data
