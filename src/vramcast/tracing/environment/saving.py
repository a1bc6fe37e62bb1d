"""Files of tensors without data.

A checkpoint of simulated tensors says of each its layout and device, nothing else. It is never put where the script
says, as it could overwrite a real one: the overlay keeps it, and the script finds it there when it reads it back.
"""

from __future__ import annotations

import errno
import json
import os
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Final, Self

import torch

from vramcast.errors import Note
from vramcast.tracing.environment.overlay import Overlay
from vramcast.tracing.environment.patches import Patches
from vramcast.tracing.simulation import Simulation

OF_TENSORS: Final = (".bin", ".pt", ".pth", ".ckpt")
"""How names of files end that `torch.load` reads."""
STATES: Final = frozenset((
    "ema", "ema_state_dict", "G", "generator", "g_ema", "model", "model_ema", "model_state", "model_state_dict",
    "module", "net", "network", "params", "params_ema", "state_dict", "student", "teacher",
))
"""What checkpoints call weights and states."""
ABSENT: Final = "{}: there is no such file; the weights that a module is made with stay"
NOT_WRITTEN: Final = "a checkpoint of tensors without data is not written"
SAFETENSORS_NAMES: Final = {
    torch.float64: "F64", torch.float32: "F32", torch.float16: "F16", torch.bfloat16: "BF16", torch.int64: "I64",
    torch.int32: "I32", torch.int16: "I16", torch.int8: "I8", torch.uint8: "U8", torch.bool: "BOOL",
    torch.float8_e4m3fn: "F8_E4M3", torch.float8_e5m2: "F8_E5M2",
}


class Unread(dict[str, Any]):
    """Stands for weights that were not fetched, and for every part of them; loading it changes nothing."""

    is_about: bool = False  # whether a script was given one

    def __new__(cls, *_given: Any, **_how: Any) -> Self:
        Unread.is_about = True
        return super().__new__(cls)

    def __missing__(self, name: str) -> Unread:
        return Unread()

    def pop(self, *_name: Any) -> Any:
        return Unread()


class Absent(Unread):
    """A checkpoint that is not there, or a part of it. Weights may be loaded; what it says beside them, such as
    arguments, and what a network or a tensor of it would do, nobody knows.

    Raises: FileNotFoundError, the one that the script would have met, where that is asked
    """

    last: FileNotFoundError | None = None  # of the last one that was to be read

    def __init__(self, error: FileNotFoundError, *, is_whole: bool = True) -> None:
        super().__init__()
        Absent.last = error
        self._error, self._is_whole = error, is_whole

    def __missing__(self, name: str) -> Unread:
        if self._is_whole and name not in STATES:
            raise self._again()
        return Absent(self._error, is_whole=False)

    def __getitem__(self, name: Any) -> Any:
        if isinstance(name, str):
            return super().__getitem__(name)
        raise self._again()  # of a tensor

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        raise self._again()

    def _again(self) -> FileNotFoundError:
        """One that comes from where it is raised."""
        return FileNotFoundError(self._error.errno, self._error.strerror, self._error.filename)


def rebuild(key: int, num_elements: int, layout: tuple[Any, Any, int], dtype: torch.dtype, device: str) -> torch.Tensor:
    """A simulated tensor read back. Within `torch.load`, what shared a storage shares it again."""
    place = _Loading.now.place(device) if _Loading.now is not None else device
    shared = _Loading.now.shared if _Loading.now is not None else {}
    if key not in shared:
        shared[key] = torch.empty(num_elements, dtype=dtype, device=place)
    size, stride, offset = layout
    return shared[key].as_strided(size, stride, offset)


class _Loading:
    """One call of `torch.load`."""

    now: _Loading | None = None

    def __init__(self, map_location: Any) -> None:
        self.map_location = map_location
        self.shared: dict[int, torch.Tensor] = {}
        self.moves: dict[int, str] = {}  # key of a real storage -> where it was when it was saved

    def place(self, device: str) -> Any:
        """Where to put what was on a device."""
        wanted = self.map_location
        if isinstance(wanted, dict):
            return wanted.get(device, device)
        return device if wanted is None or callable(wanted) else wanted

    def note(self, storage: Any, device: str) -> Any:
        """A real storage: read on the host first, as C++ has no device to put it on."""
        self.moves[storage._cdata] = str(self.place(device))
        return storage

    def settle(self, value: Any) -> Any:
        """Move what was read to where it belongs."""
        if isinstance(value, torch.nn.Parameter):
            value.data = self.settle(value.data)
        elif isinstance(value, torch.Tensor):
            return value.to(self.moves.get(value.untyped_storage()._cdata, "cpu")) if not value.is_cuda else value
        elif isinstance(value, dict):
            for key in value:
                value[key] = self.settle(value[key])
        elif isinstance(value, list):
            value[:] = map(self.settle, value)
        elif type(value) is tuple:
            return tuple(map(self.settle, value))
        return value


def patch_saving(patches: Patches, simulation: Simulation, overlay: Overlay) -> None:
    memory = simulation.memory
    reduce, save, load = torch.Tensor.__reduce_ex__, torch.save, torch.load
    is_written = [False]  # whether a simulated tensor was, since torch.save began

    def reduced(self: torch.Tensor, protocol: Any) -> Any:
        resident = memory.of(self)
        if resident is None:
            return reduce(self, protocol)
        is_written[0] = True
        storage = self.untyped_storage()
        layout = tuple(self.size()), tuple(self.stride()), self.storage_offset()
        return rebuild, (storage._cdata, storage.nbytes() // self.itemsize, layout, self.dtype, str(self.device))

    def saved(obj: Any, f: Any, *args: Any, **kwargs: Any) -> None:
        if not isinstance(f, (str, os.PathLike)):
            save(obj, f, *args, **kwargs)
            return
        with overlay.pending(f) as draft:
            is_written[0] = False
            save(obj, draft.path, *args, **kwargs)
            draft.is_kept_out = is_written[0]
        if is_written[0]:
            simulation.assumptions.note(NOT_WRITTEN, simulation.origins.place())

    def loaded(f: Any, map_location: Any = None, *args: Any, **kwargs: Any) -> Any:
        path = overlay.for_reading(f) if isinstance(f, (str, os.PathLike)) else f
        before, _Loading.now = _Loading.now, _Loading(map_location)
        try:
            if path != f and not Path(path).stat().st_size:  # an empty one that stands in
                raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), str(f))
            with torch.serialization.safe_globals([rebuild]):
                return _Loading.now.settle(load(path, _Loading.now.note, *args, **kwargs))
        except FileNotFoundError as error:
            if not str(f).endswith(OF_TENSORS):
                raise
            simulation.assumptions.note(Note(ABSENT, f), simulation.origins.place())
            return Absent(error)
        finally:
            _Loading.now = before

    patches.set(torch.Tensor, "__reduce_ex__", reduced)
    patches.set(torch, "save", saved)
    patches.set(torch, "load", loaded)
    patches.set(torch.serialization, "save", saved)
    patches.set(torch.serialization, "load", loaded)
    if find_spec("safetensors") is not None:
        _patch_safetensors(patches, simulation, overlay)


def _patch_safetensors(patches: Patches, simulation: Simulation, overlay: Overlay) -> None:
    module: Any = import_module("safetensors.torch")
    write, opens = module.save_file, module.safe_open

    def opened(filename: Any, *args: Any, **kwargs: Any) -> Any:
        return opens(overlay.for_reading(filename), *args, **kwargs)

    def saved(tensors: dict[str, torch.Tensor], filename: Any, metadata: Any = None) -> None:
        is_simulated = any(simulation.memory.of(tensor) is not None for tensor in tensors.values())
        with overlay.pending(filename) as draft:
            draft.is_kept_out = is_simulated
            if is_simulated:
                write_hollow(tensors, draft.path, metadata)
                simulation.assumptions.note(NOT_WRITTEN, simulation.origins.place())
            else:
                write(tensors, draft.path, metadata)

    patches.set(module, "save_file", saved)
    for each in (module, import_module("safetensors")):
        patches.set(each, "safe_open", opened)


def write_hollow(tensors: dict[str, torch.Tensor], path: str, metadata: dict[str, str] | None) -> None:
    """A safetensors file with a header as ever and a hole instead of data, which takes no room on disk."""
    header: dict[str, Any] = {"__metadata__": metadata} if metadata else {}
    end = 0
    for name, tensor in tensors.items():
        start, end = end, end + tensor.numel() * tensor.itemsize
        header[name] = {
            "dtype": SAFETENSORS_NAMES[tensor.dtype], "shape": list(tensor.size()), "data_offsets": [start, end]
        }
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    with open(path, "wb") as file:  # noqa: PTH123 (the overlay's own path)
        file.write(len(text).to_bytes(8, "little") + text)
        file.truncate(8 + len(text) + end)
