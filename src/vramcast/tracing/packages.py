"""Packages that a script cannot go on without and this Python does not have.

Loggers, and what draws or prints, get a stand-in that does nothing, flash-attn, which cannot be installed without a
compiler for CUDA, its few functions over the stand-in of its compiled part. A script is started anew with a stand-in
only where it ended for want of the package: one that has an answer of its own to a missing package keeps it.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator, Sequence
from dis import opmap
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from importlib.util import find_spec
from pathlib import Path
from types import FunctionType, ModuleType
from typing import Any, Final

from vramcast.errors import Note

LOGGERS: Final = (
    "aim", "clearml", "comet_ml", "dvclive", "mlflow", "neptune", "swanlab", "tensorboard", "tensorboardX",
    "tensorboard_logger", "trackio", "visdom", "wandb",
)
SHOWING: Final = (
    "GPUtil", "colorama", "coloredlogs", "colorlog", "icecream", "ipdb", "loguru", "matplotlib", "memory_profiler",
    "plotly", "prettytable", "ptflops", "seaborn", "setproctitle", "tabulate", "termcolor", "thop", "torchinfo",
    "torchsummary", "torchviz",
)
"""What draws, prints or counts for a reader."""
IDLE: Final = LOGGERS + SHOWING
FLASH: Final = "flash_attn"
THEIRS: Final = {"tensorboard": "google.protobuf", "matplotlib": "mpl_toolkits"}
"""What comes with it, or what torch.utils.tensorboard imports beside it."""
VERSIONS: Final = ("version", "_version")
"""Modules that a project writes when it is installed."""
UNINSTALLED: Final = "{} is written where the project is installed: one that says 0.0.0 takes its place"
MISSING: Final = re.compile(
    rf"\b(?P<logger>{'|'.join(IDLE)})\b|(?P<flash>flash[-_]attn\b(?!_interface)|FlashAttention-?2)", re.IGNORECASE
)
"""What says that one is missing, in the words of an ImportError."""
LOGS_NOTHING: Final = "{} is not installed: a stand-in that does nothing takes its place"
OWN_PYTHON: Final = "{} is not installed: a stand-in takes its place, whose kernels take what its own do"
FLASH_FILES: Final = {
    f"{FLASH}/__init__.py": 'from vramcast.tracing.extensions.flash_attn import *\n__version__ = "2.8.4"\n',
    f"{FLASH}/flash_attn_interface.py": "from vramcast.tracing.extensions.flash_attn import *\n",
    f"{FLASH}/bert_padding.py": "from vramcast.tracing.extensions.flash_attn import *\n",
    f"{FLASH}-2.8.4.dist-info/METADATA": "Metadata-Version: 2.1\nName: flash-attn\nVersion: 2.8.4\n",
    f"{FLASH}-2.8.4.dist-info/top_level.txt": f"{FLASH}\n",
}
DISTRIBUTIONS: Final = {
    "cv2": "opencv-python", "PIL": "pillow", "sklearn": "scikit-learn", "skimage": "scikit-image", "yaml": "pyyaml",
    "bs4": "beautifulsoup4", "pytorch_lightning": "pytorch-lightning", "open_clip": "open-clip-torch",
    "torch_geometric": "torch-geometric", "clip": "openai-clip", "pkg_resources": "setuptools<81", "gym": "gym",
}
"""Module -> what pip calls its package, where the names differ."""
NOT_HERE: Final = (
    "it imports {}, which this Python does not have, and a script is traced with its packages: pip install {}"
)
OWN: Final = str(Path(__file__).parent.parent)
"""Our own files: frames in them and those that called them are no part of what a user runs."""
UNREACHED: Final = re.compile(
    r"Name or service not known|name resolution|NameResolutionError|Max retries exceeded|Cannot connect to host|"
    r"getaddrinfo failed|Couldn't reach|couldn't connect to|offline mode"
)
"""What is said where the network does not answer."""
ITS_TOP: Final = (".git", "pyproject.toml", "setup.py", "setup.cfg", "requirements.txt", "environment.yml")
PROJECT_NEARBY: Final = "{} holds modules that the script imports: it is on the path, as PYTHONPATH would put it there"


def named_missing(error: BaseException) -> str:
    """The package with a stand-in for want of which a script ended, "" where there is none."""
    whole = (error.name or "") if isinstance(error, ModuleNotFoundError) else ""
    if whole.rpartition(".")[2] in VERSIONS and whole.rpartition(".")[0] in sys.modules:
        return whole
    match = MISSING.search(str(error)) if isinstance(error, ImportError) or "install" in str(error) else None
    if match is None:
        return ""
    name = FLASH if match["flash"] else next(name for name in IDLE if name.lower() == match["logger"].lower())
    return "" if find_spec(name) is not None else name


def advice(root: str) -> Note:
    """What to do about a package that a script imports and nobody has, "" where a part of it is missing."""
    return Note("") if _is_known(root) else Note(NOT_HERE, root, DISTRIBUTIONS.get(root, root.replace("_", "-")))


def built_by(error: BaseException) -> str:
    """The setup.py on the path that compiles the module which an import is for want of, "" where there is none."""
    name = error.name if isinstance(error, ModuleNotFoundError) and "." in (error.name or "") else ""
    quoted = re.compile(rf"[\"']{re.escape(name or '')}[\"']")
    folders = (Path(each, "setup.py") for each in dict.fromkeys(sys.path) if name and not is_installed_at(each))
    texts = ((path, path.read_text(encoding="utf-8", errors="replace")) for path in folders if path.is_file())
    return next((str(path) for path, text in texts if quoted.search(text)), "")


def folder_nearby(root: str, script: Path) -> str:
    """Folder of the script's own project where a package lies that nobody has, "" where there is none.

    A project reaches up to the folder that a version control marks, or the outermost that a packager or pip does, as
    examples have a file of requirements each; without one it is the script's.
    """
    above = () if _is_known(root) else script.resolve().parents[:4]
    marked = [depth for depth, each in enumerate(above) if any((each / mark).exists() for mark in ITS_TOP)]
    top = next((depth for depth in marked if (above[depth] / ITS_TOP[0]).exists()), max(marked, default=0))
    for folder in (place for each in above[: top + 1] for place in (each, each / "src", *_parts_with(root, each))):
        if (folder / f"{root}.py").is_file() or next((folder / root).glob("*.py"), None) is not None:
            return str(folder)
    return ""


def _parts_with(root: str, folder: Path) -> Iterator[Path]:
    """Folders within one that hold a package, as a repository of several has them."""
    yield from (file.parents[1] for file in sorted(folder.glob(f"*/{root}/__init__.py")))


def own_files(script: str) -> set[Path]:
    """The script that runs and the modules beside it that are loaded."""
    main = Path(getattr(sys.modules["__main__"], "__file__", None) or script)
    folder = main.resolve().parent
    loaded = (getattr(module, "__file__", None) for module in list(sys.modules.values()))
    beside = {Path(name) for name in loaded if name and Path(name).parent == folder}
    return {path for path in (main, *beside) if path.suffix == ".py" and path.is_file()}


def project_text(script: str) -> str:
    """What the script says, and every module that is loaded and belongs to no package that is installed."""
    names = (getattr(module, "__file__", None) or "" for module in list(sys.modules.values()))
    theirs = {Path(name) for name in names if name.endswith(".py") and not is_installed_at(name)}
    files = sorted(own_files(script) | {path for path in theirs if path.is_file()})
    return "\n".join(path.read_text(encoding="utf-8", errors="replace") for path in files)


def is_installed_at(path: str) -> bool:
    """Whether a file belongs to Python, an installed package or this one."""
    return path.startswith((sys.prefix, sys.base_prefix, OWN))


def _is_known(root: str) -> bool:
    return root in sys.modules or find_spec(root) is not None


def stand_in_for(names: Sequence[str], folder: Path) -> Iterator[str]:
    """Make them found behind all that is installed; what is to be said of each."""
    idle = tuple(name for name in names if name != FLASH)
    if idle:
        sys.meta_path.append(StandIns(idle + tuple(THEIRS[name] for name in idle if name in THEIRS)))
    yield from (Note(LOGS_NOTHING if name in IDLE else UNINSTALLED, name) for name in idle)
    if FLASH not in names:
        return
    packages = folder / "packages"
    for name, text in FLASH_FILES.items():
        (packages / name).parent.mkdir(parents=True, exist_ok=True)
        (packages / name).write_text(text, encoding="utf-8")
    sys.path.append(str(packages))
    yield Note(OWN_PYTHON, "flash-attn")


class NotInstalled(ModuleType):
    """One that is not needed, and every part of it: whatever is done with it comes to nothing."""

    def __init__(self, name: str) -> None:
        super().__init__(name, f"In the place of {name}, which is not installed.")
        self.__path__: list[str] = []
        self.__version__ = "99.0"

    def __getattr__(self, attribute: str) -> Any:
        if attribute.startswith("__"):
            raise AttributeError(attribute)
        return NotInstalled(f"{self.__name__}.{attribute}")

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """A function that it decorates stays as it is."""
        return args[0] if len(args) == 1 and not kwargs and isinstance(args[0], FunctionType) else self

    def __enter__(self) -> Any:
        return self

    def __exit__(self, *_: object) -> None:
        """Nothing was opened."""

    def __iter__(self) -> Iterator[Any]:
        """Nothing; as many of it as an assignment takes apart."""
        frame = sys._getframe(1)
        operation, number = frame.f_code.co_code[frame.f_lasti : frame.f_lasti + 2]
        return iter([self] * number if operation == opmap["UNPACK_SEQUENCE"] else [])

    def __format__(self, _how: str) -> str:
        return ""

    def _other(self, other: Any) -> Any:
        return other

    __add__ = __radd__ = _other  # of texts

    def _itself(self, _other: Any) -> Any:
        return self

    __mul__ = __rmul__ = __truediv__ = _itself  # of figures

    def __getitem__(self, _key: Any) -> Any:
        return self

    def __setitem__(self, _key: Any, _value: Any) -> None:
        """Nothing is kept."""

    def __mro_entries__(self, _bases: Any) -> tuple[type, ...]:
        return ()


class Version(ModuleType):
    """Whatever it is asked for is the number of a version."""

    def __getattr__(self, attribute: str) -> str:
        if attribute in ("__path__", "__file__", "__all__", "__wrapped__"):
            raise AttributeError(attribute)
        return "0.0.0"


class StandIns(MetaPathFinder, Loader):
    """Finds them, after all else has failed to."""

    def __init__(self, names: Sequence[str]) -> None:
        self._names = names

    def find_spec(self, fullname: str, _path: Any, _target: Any = None) -> ModuleSpec | None:
        is_meant = any(f"{fullname}.".startswith(f"{name}.") or name.startswith(f"{fullname}.") for name in self._names)
        return ModuleSpec(fullname, self, is_package=True) if is_meant else None

    def create_module(self, spec: ModuleSpec) -> ModuleType:
        parent, _, name = spec.name.rpartition(".")
        is_version = name in VERSIONS and parent not in self._names and spec.name in self._names
        return (Version if is_version else NotInstalled)(spec.name)

    def exec_module(self, module: ModuleType) -> None:
        """There is nothing to it."""
