"""Checkpoints and data sets of ultralytics that are not there: the network that its own YAML describes, black images.

[tasks] ultralytics nn/tasks.py `torch_safe_load`: a checkpoint is a dictionary with the model and how it was trained
[data] ultralytics data/utils.py `check_det_dataset`: a description names the folders of images; labels lie in folders
of the same names with labels in the place of images, a line for each object: its class and points of its outline
"""

from __future__ import annotations

from importlib import import_module
from pathlib import Path
from typing import Any, Final

from vramcast.errors import Note
from vramcast.tracing.environment.rows import IMAGE, picture
from vramcast.tracing.simulation import Simulation

MODELS: Final = {
    "detect": "DetectionModel", "segment": "SegmentationModel", "classify": "ClassificationModel", "pose": "PoseModel",
    "obb": "OBBModel",
}
UNFETCHED: Final = "{}: its weights are not fetched; the network of ultralytics' {} stands in"
NO_IMAGES: Final = "{}: its files are not fetched; {} black images of {} x {} with one object each stand in"
IMAGES: Final = 64
OUTLINE: Final = "0 0.2 0.2 0.8 0.2 0.8 0.8 0.2 0.8"
BOX: Final = "0 0.5 0.5 0.6 0.6"


def checkpoint_of_yaml(simulation: Simulation, load: Any, /, weight: Any, *args: Any, **kwargs: Any) -> Any:
    """`torch_safe_load`."""
    ours: Any = import_module("ultralytics.nn.tasks")
    try:
        return load(weight, *args, **kwargs)
    except (ConnectionError, FileNotFoundError):
        name = f"{Path(weight).stem}.yaml"
        described = ours.yaml_model_load(name)  # raises where it has none of this name
    simulation.assumptions.note(Note(UNFETCHED, weight, name), simulation.origins.place())
    model = getattr(ours, MODELS[ours.guess_model_task(described)])(described, verbose=False)
    return {"model": model, "train_args": {}, "epoch": -1}, str(weight)


def images_of_yaml(
    simulation: Simulation, check: Any, /, dataset: Any, autodownload: bool = True, *args: Any, **kwargs: Any
) -> Any:
    """`check_det_dataset`, which fetches nothing."""
    try:
        return check(dataset, False, *args, **kwargs)
    except FileNotFoundError:
        library: Any = import_module("ultralytics.utils")
        described = library.YAML.load(import_module("ultralytics.data.utils").check_file(str(dataset)))
    side = simulation.data.get("image", IMAGE)
    simulation.assumptions.note(Note(NO_IMAGES, dataset, IMAGES, side, side), simulation.origins.place())
    folder = simulation.folder / "yolo"
    (folder / "images").mkdir(parents=True, exist_ok=True)
    (folder / "labels").mkdir(exist_ok=True)
    points, dimensions = described.get("kpt_shape") or (0, 0)
    line = BOX + " 0.5" * 2 * points + " 2" * points * (dimensions - 2) if points else OUTLINE
    for number in range(IMAGES):
        (folder / "images" / f"{number}.png").write_bytes(picture(side, side))
        (folder / "labels" / f"{number}.txt").write_text(line, encoding="utf-8")
    file = folder / f"{Path(dataset).stem}.yaml"
    library.YAML.save(file, described | {"path": str(folder), "train": "images", "val": "images", "test": None})
    return check(file, False, *args, **kwargs)
