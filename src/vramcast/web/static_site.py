"""`vramcast web --build`: the page as a static site whose answers are computed in the browser, by the same service.

Replies that a static site brings along: catalogues, words, and the questions that its pages begin with.

They are the service's own, asked when the site is built, so that a visitor reads them before Python is there.
"""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
import tarfile
import tempfile
import zipfile
from collections.abc import Iterator, Mapping, Sequence
from hashlib import sha256
from importlib.resources import files
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Final, NamedTuple
from urllib.parse import urlsplit

import yaml

from vramcast.errors import InvalidSpec, SourceError
from vramcast.report import replay_page
from vramcast.report.messages import LANGUAGES
from vramcast.sources.fetch import read_url
from vramcast.web.exchange import FONT, JSON, content_policy
from vramcast.web.service import answered

QUESTIONS: Final = "web/page/questions.json"
"""The questions that pages begin with; the pages read the same file."""

LOOKED_UP: Final = (
    "/api/version", "/api/gpus", "/api/instances", "/api/models?query=", "/api/accuracy", "/api/words",
    "/api/options/train", "/api/options/serve", "/api/options/plan-train", "/api/options/plan-serve",
)
"""What pages ask for before any question; of the last ones each says its language in any case."""

SAYS_LANGUAGE: Final = ("/api/words", "/api/options/")
LARGEST_INSIDE: Final = 20_000
"""Of a reply that stands in the page itself; larger ones are files beside it [bytes]."""


def prepared() -> tuple[dict[str, Any], dict[str, bytes]]:
    """Request -> its reply or the name of its file, and name -> file; a request is as `backend.js` spells it."""
    known: dict[str, Any] = {}
    beside: dict[str, bytes] = {}
    for spelled, body in _replies():
        if len(body) <= LARGEST_INSIDE:
            known[spelled] = json.loads(body)
            continue
        name = f"prepared/{sha256(body).hexdigest()[:12]}.json"
        known[spelled], beside[name] = name, body
    return known, beside


def _replies() -> Iterator[tuple[str, bytes]]:
    for path in LOOKED_UP:
        for language in LANGUAGES:
            said = _in_language(path, language)
            yield f"GET {said}", _reply("GET", said)
    for command, question in _questions():
        for language in LANGUAGES:
            said = _in_language(f"/api/{command}", language)
            spelled = json.dumps(sorted(question.items()), ensure_ascii=False, separators=(",", ":"))
            yield f"POST {said} {spelled}", _reply("POST", said, json.dumps(question).encode())


def _in_language(path: str, language: str) -> str:
    """A path as the page asks for it: English is said only by what always says its language."""
    if language == "en" and not path.startswith(SAYS_LANGUAGE):
        return path
    return f"{path}{'&' if '?' in path else '?'}lang={language}"


def _reply(method: str, said: str, body: bytes = b"") -> bytes:
    at = urlsplit(said)
    reply = answered(method, at.path, at.query, {"content-type": JSON} if body else {}, body)
    if reply.status != 200:
        raise RuntimeError(f"{method} {said}: {reply.status}")
    return reply.body


def _questions() -> Iterator[tuple[str, Mapping[str, str]]]:
    known = json.loads((files("vramcast") / QUESTIONS).read_text(encoding="utf-8"))
    for asked in (known["first"], *known["examples"]):
        mode = known["modes"][asked["mode"]]
        yield mode["command"], mode["options"] | asked["given"]
    yield from known["pages"].items()


PYODIDE: Final = "314.0.7"
"""The version of the npm package that is fetched where none is given."""

MSGSPEC: Final = "0.22.0"
"""The one compiled package that the core needs; it is published for Pyodide's ABI."""

RUNTIME: Final = ("pyodide.mjs", "pyodide.asm.mjs", "pyodide.asm.wasm", "python_stdlib.zip", "pyodide-lock.json")
"""Files of the npm package that a browser loads."""

COUNTED: Final = (".wasm", ".zip", ".json")
"""Endings of those that the bar of the page counts; the others are modules, which a browser loads by itself."""

RELEASES: Final = "https://cdn.jsdelivr.net/pyodide"
"""Where the packages of a Pyodide release lie; npm has the runtime alone."""

LARGEST_WHEEL: Final = 64 << 20
"""[bytes]"""

APART: Final = (
    "tracing", "web/page", "web/server.py", "web/workers.py", "web/warm.py", "watch", "cli",
)
"""Parts of vramcast that no page asks: they need torch, sockets, a GPU or a terminal."""

VERSION: Final = re.compile(r"[\w.-]{1,40}", re.ASCII)
ADDRESS: Final = re.compile(r"https?://[\w.-]+(?::\d+)?(?:/[\w./~-]*)?", re.ASCII)
DOWNLOAD_SECONDS: Final = 300
WHEN: Final = (2020, 1, 1, 0, 0, 0)  # of every file in the archive: equal inputs make equal sites


class Site(NamedTuple):
    """What was built."""

    directory: Path
    num_bytes: int
    lacks: str = ""  # why NumPy is not in it, which the search over training plans needs


class Runtime(NamedTuple):
    """A Pyodide runtime, and what wheels must be built for."""

    folder: Path
    version: str  # "314.0.7"
    python: str  # "314"
    platform: str  # "pyemscripten_2026_0_wasm32"


def build(
    directory: Path, *, pyodide: Path | None = None, wheels: Sequence[Path] = (), address: str | None = None
) -> Site:
    """Write the site.

    Args:
        directory: of the site; made where it is missing, never one that holds anything else
        pyodide: a folder with the npm package `pyodide`; None: npm fetches it
        wheels: more packages for the browser; one of msgspec in place of what pip fetches, NumPy for searches
        address: where the site will stand; what shows previews of links asks there for the picture

    Raises: InvalidSpec, SourceError of one sentence
    """
    if address is not None and ADDRESS.fullmatch(address) is None:
        raise InvalidSpec("{!r} is no address; it reads https://HOST/PATH", address[:80])
    if directory.exists() and (not directory.is_dir() or any(directory.iterdir())):
        raise InvalidSpec("{} is not an empty folder; name one that is empty or does not exist", directory)
    with tempfile.TemporaryDirectory(prefix="vramcast-web-") as scratch:
        made = Path(scratch) / "site"
        shutil.copytree(str(files("vramcast.web") / "page"), made)
        runtime = runtime_in(pyodide if pyodide is not None else _fetched_runtime(Path(scratch)))
        names = [package_of(wheel, runtime) for wheel in wheels]
        packages, lacks = [*wheels], ""
        if "msgspec" not in names:
            packages.append(_fetched_msgspec(runtime, Path(scratch)))
        if "numpy" not in names:
            try:
                packages.append(_fetched_numpy(runtime, Path(scratch)))
            except SourceError as error:
                lacks = str(error)
        _write_page(made, _write_python(made, runtime, packages), address)
        _put(made, directory)
    size = sum(path.stat().st_size for path in directory.rglob("*") if path.is_file())
    return Site(directory, size, lacks)


def _write_python(made: Path, runtime: Runtime, packages: Sequence[Path]) -> str:
    """The runtime and the core, in names that say their versions; what the page says of them and their bytes."""
    folder = made / f"pyodide-{runtime.version}"
    folder.mkdir()
    for name in RUNTIME:
        shutil.copyfile(runtime.folder / name, folder / name)
    unnamed = made / "core.zip"
    _write_core(unnamed, packages)
    core = unnamed.rename(made / f"core-{sha256(unnamed.read_bytes()).hexdigest()[:12]}.zip")
    counted = (core, *(folder / name for name in RUNTIME if name.endswith(COUNTED)))
    return f"{folder.name} {core.name} {sum(path.stat().st_size for path in counted)}"


def _put(made: Path, directory: Path) -> None:
    """The site in its place, whole or not at all.

    Raises: SourceError
    """
    was_there = directory.exists()
    try:
        shutil.copytree(made, directory, dirs_exist_ok=True)
    except (OSError, shutil.Error) as error:
        shutil.rmtree(directory, ignore_errors=True)
        if was_there:
            directory.mkdir(exist_ok=True)
        raise SourceError(
            "{}: cannot be written ({}); name another place, or make room", directory, str(error)[:200]
        ) from None


def runtime_in(folder: Path) -> Runtime:
    """The runtime in a folder.

    Raises: SourceError
    """
    missing = [name for name in RUNTIME if not (folder / name).is_file()]
    if missing:
        raise SourceError(
            "{} lacks {}; give the folder of the npm package pyodide: npm install pyodide@{}, then --pyodide "
            "node_modules/pyodide", folder, missing[0], PYODIDE
        )
    try:
        info = json.loads((folder / "pyodide-lock.json").read_text(encoding="utf-8"))["info"]
        major, minor = info["python"].split(".")[:2]
        version = json.loads((folder / "package.json").read_text(encoding="utf-8"))["version"]
        if VERSION.fullmatch(version) is None:
            raise ValueError(version)
        return Runtime(folder, version, major + minor, f"pyemscripten_{info['abi_version']}_{info['arch']}")
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        raise SourceError("{} does not say which release it is, and for which Python", folder) from None


def package_of(wheel: Path, runtime: Runtime) -> str:
    """The package of a wheel that runs there, by its name in lower case.

    Raises: InvalidSpec, SourceError
    """
    parts = wheel.name.removesuffix(".whl").split("-")
    if wheel.suffix != ".whl" or len(parts) < 5:
        raise InvalidSpec(
            "{} is no wheel; they are named like msgspec-{}-...-{}.whl", wheel.name, MSGSPEC, runtime.platform
        )
    if not wheel.is_file():
        raise SourceError("{} does not exist", wheel)
    if parts[-1] not in ("any", runtime.platform):
        raise InvalidSpec("{} is for {}; a browser with this Pyodide needs {}", wheel.name, parts[-1], runtime.platform)
    return parts[0].lower()


def _write_page(directory: Path, python: str, address: str | None) -> None:
    """The page, told to ask its worker, with what it begins with, and kept from loading what is not of its site."""
    package, folder = FONT
    if find_spec(package) is not None:
        face = next(Path(str(files(package) / folder)).glob("Inter[[]*.ttf"))
        shutil.copyfile(face, directory / face.name)
    index = directory / "index.html"
    text = index.read_text(encoding="utf-8")
    asks = '<meta name="vramcast-backend" content="fetch">'
    policy = f'<meta http-equiv="Content-Security-Policy" content="{content_policy(in_browser=True)}">'
    if asks not in text:
        raise RuntimeError("the page does not say how it asks")
    known, beside = prepared()
    (directory / "prepared").mkdir()
    for name, content in beside.items():
        (directory / name).write_bytes(content)
    inside = replay_page.embedded(known)
    text = text.replace(asks, "\n  ".join((
        asks.replace("fetch", "pyodide"), f'<meta name="vramcast-python" content="{python}">', policy,
        f'<script type="application/json" id="prepared">{inside}</script>',
    )))
    if address is not None:
        text = text.replace('content="preview.png"', f'content="{address.rstrip("/")}/preview.png"')
    index.write_text(text, encoding="utf-8")


def _write_core(archive: Path, wheels: Sequence[Path]) -> None:
    """One archive of vramcast, PyYAML and the wheels, which the worker unpacks beside Python's own library."""
    with zipfile.ZipFile(archive, "w", zipfile.ZIP_DEFLATED) as core:
        for name, content in sorted(_core_files()):
            core.writestr(_entry(name), content)
        for wheel in wheels:
            try:
                with zipfile.ZipFile(wheel) as packed:
                    for name in sorted(packed.namelist()):
                        if not name.endswith("/"):
                            core.writestr(_entry(name), packed.read(name))
            except zipfile.BadZipFile:
                raise SourceError("{} cannot be unpacked; download it again", wheel) from None


def _core_files() -> Iterator[tuple[str, bytes]]:
    """Files of vramcast and of PyYAML, whose parser in C is optional."""
    shared = {*replay_page.PARTS, QUESTIONS}  # some of them are the page's
    for package, apart in ((Path(str(files("vramcast"))), APART), (Path(yaml.__file__).parent, ())):
        for path in package.rglob("*"):
            name = path.relative_to(package).as_posix()
            left_out = any(name == part or name.startswith(part + "/") for part in apart) and name not in shared
            left_out = left_out or "__pycache__" in path.parts  # where other processes write meanwhile
            if path.is_file() and not left_out and path.suffix not in (".so", ".pyd"):
                yield f"{package.name}/{name}", path.read_bytes()


def _entry(name: str) -> zipfile.ZipInfo:
    entry = zipfile.ZipInfo(name, WHEN)
    entry.compress_type = zipfile.ZIP_DEFLATED
    entry.external_attr = 0o644 << 16
    return entry


def _fetched_runtime(scratch: Path) -> Path:
    if shutil.which("npm") is None:
        raise SourceError(
            "npm is not there to fetch Pyodide; give --pyodide FOLDER with the npm package pyodide {}", PYODIDE
        )
    _run(["npm", "pack", f"pyodide@{PYODIDE}", "--silent", "--pack-destination", str(scratch)], "Pyodide")
    with tarfile.open(next(scratch.glob("pyodide-*.tgz"))) as packed:
        packed.extractall(scratch / "npm", filter="data")
    return scratch / "npm" / "package"


def _fetched_msgspec(runtime: Runtime, scratch: Path) -> Path:
    if find_spec("pip") is None:  # as in environments that uv makes
        raise SourceError("pip, which fetches msgspec for Pyodide, is not installed here; add it (uvx --with pip), or "
                          "give --wheel msgspec-...whl")
    where = ["--platform", runtime.platform, "--python-version", runtime.python, "--abi", f"cp{runtime.python}"]
    asked = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--only-binary=:all:", *where]
    _run([*asked, "--implementation", "cp", "-d", str(scratch), f"msgspec=={MSGSPEC}"], "msgspec for Pyodide")
    return next(scratch.glob("msgspec-*.whl"))


def _fetched_numpy(runtime: Runtime, scratch: Path) -> Path:
    """The wheel that the release's own list names, held against the hash there.

    Raises: SourceError
    """
    try:
        listed = json.loads((runtime.folder / "pyodide-lock.json").read_text(encoding="utf-8"))["packages"]["numpy"]
        name, wanted = Path(listed["file_name"]).name, listed["sha256"]
    except (ValueError, KeyError, TypeError):
        raise SourceError("{} lists no NumPy", runtime.folder / "pyodide-lock.json") from None
    content = read_url(f"{RELEASES}/v{runtime.version}/full/{name}", most=LARGEST_WHEEL, seconds=DOWNLOAD_SECONDS)
    if sha256(content).hexdigest() != wanted:
        raise SourceError("{} is not the file that the release lists", name)
    (scratch / name).write_bytes(content)
    return scratch / name


def _run(command: Sequence[str], what: str) -> None:
    """Run what fetches a package.

    Raises: SourceError
    """
    try:
        subprocess.run(command, check=True, capture_output=True, text=True, timeout=DOWNLOAD_SECONDS)
    except (subprocess.CalledProcessError, subprocess.TimeoutExpired, OSError) as error:
        said = str(getattr(error, "stderr", None) or error).strip().splitlines()
        raise SourceError("{} could not be fetched ({})", what, said[-1][:160] if said else command[0]) from None
