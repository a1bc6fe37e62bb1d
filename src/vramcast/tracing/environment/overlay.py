"""Files kept out: what a script writes goes to a folder of its own and is read from there; real files stay.

Covered: what goes through Python's `open` and `os` (so pathlib, shutil, json, NumPy ...), torch.save and safetensors.
Not covered: libraries that open files in C or Rust themselves (HDF5, Arrow, SQLite) and child processes.
Whatever the mode, checkpoints of tensors without data are kept out, see `saving`.
"""

from __future__ import annotations

import builtins
import io
import os
import shutil
import sys
import tempfile
from abc import ABCMeta
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

from vramcast.tracing.environment.patches import Patches

READERS: Final = ("stat", "lstat", "access", "readlink")
"""Functions of os that look at what is there."""
CHANGERS: Final = ("chmod", "utime", "truncate", "chown", "setxattr", "removexattr")
"""Functions of os that change what is there."""
MOST_KEPT: Final = 4096  # paths that are remembered
SOUNDS: Final = (".wav", ".flac")
PASSED: Final = ("/dev/", "/proc/", "/sys/")
"""Not files."""
REAL: Final[type] = io.FileIO  # which another takes the place of
_WRITING: Final = os.O_WRONLY | os.O_RDWR | os.O_APPEND | os.O_CREAT | os.O_TRUNC


class Draft:
    """A file being written."""

    def __init__(self, path: str) -> None:
        self.path = path
        self.is_kept_out = False


class Overlay:
    """A folder over the file system."""

    def __init__(self, folder: Path, *, keeps_everything: bool) -> None:
        """Keeps what is written in an empty folder: everything, or only what is kept out on purpose."""
        self._root = str(folder.resolve())
        self.keeps_everything = keeps_everything
        self.removed: set[str] = set()  # paths that the script removed, which are still there
        self.missed: dict[str, str] = {}  # path that was looked for and is not there -> as it was given
        self.listed: dict[str, str] = {}  # folder whose names were asked for -> as it was given
        self.made: list[str] = []  # folders that stand in for some that are not there
        self.make: Callable[[str], None] = lambda _path: None  # what makes files below them that are opened
        self.texts: list[str] = []  # texts that stand in
        self.named: frozenset[str] = frozenset()  # of files that lists which stand in hold
        self.make_named: Callable[[str], object] = lambda _path: None  # what makes one of them that is looked at
        self._real = {name: getattr(os, name) for name in dir(os) if callable(getattr(os, name))}

    def for_reading(self, path: Any) -> Any:
        """Where to find a path."""
        given = self._absolute(path)
        if given is None:
            return path
        ours = self._root + given
        return ours if self._lexists(ours) or self._is_removed(given) else path

    def for_opening(self, path: Any) -> Any:
        """Where to find a file or folder that is opened: below a folder that stands in it is made."""
        found, given = self.for_reading(path), self._absolute(path) if self.made else None
        if given is None or found != path or self._lexists(given):
            return found
        if any(given.startswith(root + os.sep) for root in self.made):
            self.make(given)
            return self.for_reading(path)
        return found

    def for_looking(self, path: Any) -> Any:
        """Where to find a path that is looked at: a sound is made for that, as its length is known by its size, and
        what lists that stand in name."""
        if self.named and isinstance(path, (str, os.PathLike)):
            stem = os.path.splitext(os.path.basename(os.fsdecode(path)))[0]
            given = self._absolute(path) if stem in self.named else None
            if given is not None and not self._lexists(given) and not self._lexists(self._root + given):
                self.make_named(given)
        is_sound = self.made and isinstance(path, (str, os.PathLike)) and os.fsdecode(path).endswith(SOUNDS)
        return self.for_opening(path) if is_sound else self.for_reading(path)

    def made_path(self, given: str) -> str:
        """Where a stand-in of an absolute path lies, whose folders are there."""
        self._make_parents(self._root + given)
        return self._root + given

    def miss(self, path: Any) -> None:
        """Remember what was looked for and is not there; "<frozen runpy>" is asked for by traces of errors."""
        if not str(path).startswith("<"):
            _keep(self.missed, self._absolute(path), path)

    def note_listing(self, path: Any) -> None:
        """Remember a folder whose names are asked for."""
        _keep(self.listed, self._absolute(path), path)

    @property
    def vacant(self) -> dict[str, str]:
        """Folders that were listed and are not there, or hold nothing."""
        return {path: given for path, given in self.listed.items() if not self.holds_something(path)}

    def holds_something(self, path: str) -> bool:
        """Whether a folder has files that are not hidden."""
        try:
            return any(not name.startswith(".") for name in self.names(path))
        except OSError:
            return False

    def for_writing(self, path: Any, *, keep_content: bool, keep_out: bool = False) -> Any:
        """Where to write a path; its present content is there if it is wanted."""
        given = self._absolute(path)
        if given is None:
            return path
        ours = self._root + given
        if self._lexists(ours):
            return ours
        if not (self.keeps_everything or keep_out or self._is_removed(given)):
            return path
        parent = os.path.dirname(given)
        if not self._lexists(self._root + parent):
            if self._is_removed(parent) or not os.path.isdir(parent):
                raise FileNotFoundError(2, "No such file or directory", str(path))
            self._make_parents(ours)
        if keep_content and self._lexists(given) and not self._is_removed(given):
            shutil.copy2(given, ours)
        self.removed.discard(given)
        return ours

    @contextmanager
    def pending(self, path: Any) -> Iterator[Draft]:
        """A file that is written as a whole, of which is known only afterwards whether it is kept out."""
        handle, name = tempfile.mkstemp(dir=self._root)
        os.close(handle)
        draft = Draft(name)
        try:
            yield draft
            target = self.for_writing(path, keep_content=False, keep_out=draft.is_kept_out)
            shutil.copyfile(name, target) if target == path else self._real["replace"](name, target)
        finally:
            if self._lexists(name):
                self._real["unlink"](name)

    def remove(self, path: Any, function: str) -> None:
        """`os.remove` and `os.rmdir`."""
        given = self._absolute(path)
        if given is None:
            self._real[function](path)
            return
        ours, is_there = self._root + given, self._lexists(given) and not self._is_removed(given)
        if self._lexists(ours):
            self._real[function](ours)
        elif not (self.keeps_everything and is_there):
            self._real[function](path)
            return
        if is_there and self.keeps_everything:
            self.removed.add(given)

    def rename(self, source: Any, target: Any) -> None:
        """`os.rename` and `os.replace`."""
        one = self._absolute(source)
        found = self.for_reading(source)
        is_ours = found != source
        if one is None or not (is_ours or self.keeps_everything):
            self._real["replace"](source, target)
            return
        there = self.for_writing(target, keep_content=False, keep_out=True)
        if is_ours:
            self._real["replace"](found, there)
        elif os.path.isdir(source):
            shutil.copytree(source, there)
        else:
            shutil.copy2(source, there)
        if self._lexists(one):
            self.removed.add(one)

    def make_folder(self, path: Any, *args: Any, **kwargs: Any) -> None:
        """`os.mkdir`."""
        if self.for_reading(path) == path and self._absolute(path) is not None and self._lexists(path):
            raise FileExistsError(17, "File exists", str(path))
        self._real["mkdir"](self.for_writing(path, keep_content=False), *args, **kwargs)

    def names(self, path: Any = ".") -> list[str]:
        """`os.listdir`."""
        given = self._absolute(path)
        if given is None:
            return list(self._real["listdir"](path))
        ours = self._root + given
        is_ours = self._lexists(ours)
        found = set(self._real["listdir"](ours)) if is_ours else set()
        if not self._is_removed(given) and (not is_ours or self._lexists(given)):
            found |= {name for name in self._real["listdir"](path) if f"{given.rstrip('/')}/{name}" not in self.removed}
        return sorted(found)

    def entries(self, path: Any = ".") -> Any:
        """`os.scandir`."""
        given = self._absolute(path)
        if given is None or not self._lexists(self._root + given):
            if given is None or not self.removed:
                return self._real["scandir"](path)
            folders = [path]
        else:
            folders = [self._root + given, *([path] if self._lexists(given) else [])]
        found: dict[str, Any] = {}
        for folder in folders:
            with self._real["scandir"](folder) as entries:
                for entry in entries:
                    if folder != path or f"{given}/{entry.name}" not in self.removed:
                        found.setdefault(entry.name, entry if folder == path else _Entry(entry, os.fsdecode(path)))
        return _Entries(iter(found.values()))

    def _absolute(self, path: Any) -> str | None:
        """The path, None for what is no file or lies in the overlay itself."""
        if isinstance(path, int):
            return None
        text = os.fsdecode(path)
        given = os.path.abspath(text)
        return None if given.startswith((*PASSED, self._root)) or given == "/dev" else given

    def _is_removed(self, given: str) -> bool:
        return bool(self.removed) and any(given == path or given.startswith(path + "/") for path in self.removed)

    def _lexists(self, path: Any) -> bool:
        try:
            self._real["lstat"](path)
        except (OSError, ValueError):
            return False
        return True

    def _make_parents(self, path: str) -> None:
        parent = os.path.dirname(path)
        if not self._lexists(parent):
            self._make_parents(parent)
            self._real["mkdir"](parent)


class _Entry:
    """An `os.DirEntry` of ours, as it would lie in the folder that was asked for."""

    def __init__(self, entry: Any, folder: str) -> None:
        self._entry, self.name, self.path = entry, entry.name, os.path.join(folder, entry.name)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._entry, name)

    def __fspath__(self) -> str:
        return self.path


class _Entries:
    """What `os.scandir` returns."""

    def __init__(self, entries: Iterator[Any]) -> None:
        self._entries = entries

    def __iter__(self) -> Iterator[Any]:
        return self._entries

    def __next__(self) -> Any:
        return next(self._entries)

    def __enter__(self) -> _Entries:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Nothing is open."""


class _Raw(ABCMeta):
    """Of the class in the place of `io.FileIO`: whatever is of that one is of this one."""

    def __instancecheck__(cls, instance: object) -> bool:
        return isinstance(instance, REAL) if cls.__mro__[1] is REAL else super().__instancecheck__(instance)


def patch_files(patches: Patches, overlay: Overlay) -> None:
    really_open, os_open, tree = builtins.open, os.open, shutil.rmtree

    def opened(file: Any, mode: str = "r", *args: Any, **kwargs: Any) -> Any:
        writes = not isinstance(file, int) and any(letter in mode for letter in "wax+")
        if writes:
            if "x" in mode and os.path.lexists(file):
                raise FileExistsError(17, "File exists", str(file))
            file = overlay.for_writing(file, keep_content="w" not in mode)
        else:
            with _missing(overlay, file):
                return really_open(overlay.for_opening(file), mode, *args, **kwargs)
        return really_open(file, mode, *args, **kwargs)

    def opened_low(path: Any, flags: int, *args: Any, **kwargs: Any) -> int:
        if kwargs.get("dir_fd") is None:
            writes = flags & _WRITING
            path = (
                overlay.for_writing(path, keep_content=not flags & os.O_TRUNC) if writes else overlay.for_reading(path)
            )
        return os_open(path, flags, *args, **kwargs)

    class Raw(io.FileIO, metaclass=_Raw):
        """A file that is opened without a buffer, as blobfile does [blobfile _context.py `BlobFile`]."""

        def __init__(self, file: Any, mode: str = "r", *args: Any, **kwargs: Any) -> None:
            if any(letter in mode for letter in "wax+") and not isinstance(file, int):
                file = overlay.for_writing(file, keep_content="w" not in mode)
            with _missing(overlay, file):
                super().__init__(overlay.for_opening(file), mode, *args, **kwargs)

    patches.set(builtins, "open", opened)
    patches.set(io, "open", opened)
    patches.set(io, "FileIO", Raw)
    patches.set(os, "open", opened_low)
    for name in READERS:
        patches.set(os, name, _at(getattr(os, name), overlay.for_looking, overlay))
    for name in CHANGERS:
        if hasattr(os, name):
            patches.set(os, name, _at(
                getattr(os, name), lambda path: overlay.for_writing(path, keep_content=True), overlay
            ))
    _patch_folders(patches, overlay, tree)


def _patch_folders(patches: Patches, overlay: Overlay, tree: Callable[..., None]) -> None:
    for name in ("remove", "unlink"):
        patches.set(os, name, _unless_relative(lambda path: overlay.remove(path, "unlink"), getattr(os, name)))
    patches.set(os, "rmdir", _unless_relative(lambda path: overlay.remove(path, "rmdir"), os.rmdir))
    for name in ("rename", "replace"):
        patches.set(os, name, lambda source, target, **_fds: overlay.rename(source, target))
    patches.set(os, "mkdir", overlay.make_folder)
    for name, listing in (("listdir", overlay.names), ("scandir", overlay.entries)):
        patches.set(os, name, _listing(listing, overlay))

    def remove_tree(path: Any, ignore_errors: bool = False, onerror: Any = None, **kwargs: Any) -> None:
        found = overlay.for_reading(path)
        if found != path and os.path.isdir(found):
            tree(found, ignore_errors, onerror, **kwargs)
            path = os.path.abspath(path)
            if overlay.keeps_everything:
                overlay.removed.add(path)
        elif overlay.keeps_everything and os.path.isdir(path):
            overlay.removed.add(os.path.abspath(path))
        else:
            tree(path, ignore_errors, onerror, **kwargs)

    patches.set(shutil, "rmtree", remove_tree)
    patches.set(sys, "dont_write_bytecode", True)


def _keep(paths: dict[str, str], path: str | None, given: Any) -> None:
    """The latest last."""
    if path is not None:
        paths.pop(path, None)
        paths[path] = os.fsdecode(given)
        if len(paths) > MOST_KEPT:
            del paths[next(iter(paths))]


@contextmanager
def _missing(overlay: Overlay, path: Any) -> Iterator[None]:
    """Around a look at a path."""
    try:
        yield
    except FileNotFoundError:
        overlay.miss(path)
        raise


def _listing(function: Callable[[Any], Any], overlay: Overlay) -> Any:
    def call(path: Any = ".") -> Any:
        overlay.note_listing(path)
        overlay.for_opening(path)
        return function(path)

    return call


def _at(function: Any, where: Callable[[Any], Any], overlay: Overlay) -> Any:
    """The function, led elsewhere; not where the path is relative to an open folder."""

    def call(path: Any, *args: Any, **kwargs: Any) -> Any:
        if kwargs.get("dir_fd") is not None:
            return function(path, *args, **kwargs)
        with _missing(overlay, path):
            return function(where(path), *args, **kwargs)

    return call


def _unless_relative(ours: Callable[[Any], None], real: Any) -> Any:
    def call(path: Any, *, dir_fd: int | None = None) -> None:
        if dir_fd is not None:
            real(path, dir_fd=dir_fd)
        else:
            ours(path)

    return call
