"""The static site: everything a browser needs, nothing it does not, and one sentence for what cannot be used."""

import json
import zipfile
from functools import partial
from hashlib import sha256
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread

import pytest

from vramcast.errors import InvalidSpec, SourceError
from vramcast.report import replay_page
from vramcast.web import static_site
from vramcast.web.exchange import content_policy
from vramcast.web.static_site import QUESTIONS, RUNTIME, Site, build, prepared, runtime_in

WHEEL = "msgspec-0.22.0-cp314-cp314-pyemscripten_2026_0_wasm32.whl"
LOCK = {"info": {"abi_version": "2026_0", "arch": "wasm32", "python": "3.14.2"}}
NUMPY = b"a wheel of NumPy"
NUMPY_NAME = WHEEL.replace("msgspec-0.22.0", "numpy-2.4.6")


@pytest.fixture
def pyodide(tmp_path: Path) -> Path:
    """A folder with the names of Pyodide's files."""
    folder = tmp_path / "package"
    folder.mkdir()
    for name in RUNTIME:
        (folder / name).write_text(json.dumps(LOCK) if name.endswith(".json") else name, encoding="utf-8")
    (folder / "package.json").write_text('{"version": "314.0.7"}', encoding="utf-8")
    return folder


@pytest.fixture(autouse=True)
def nobody_there(monkeypatch: pytest.MonkeyPatch) -> None:
    """No test asks the host of Pyodide's releases."""
    monkeypatch.setattr(static_site, "RELEASES", "http://127.0.0.1:9")


def core_of(site: Site) -> Path:
    return next(site.directory.glob("core-*.zip"))


def wheel(folder: Path, name: str = WHEEL, inside: str = "msgspec/__init__.py") -> Path:
    with zipfile.ZipFile(folder / name, "w") as packed:
        packed.writestr(inside, "")
    return folder / name


def test_the_site_holds_the_page_python_and_the_core(tmp_path: Path, pyodide: Path) -> None:
    site = build(tmp_path / "site", pyodide=pyodide, wheels=[wheel(tmp_path)])
    there = {path.relative_to(site.directory).as_posix() for path in site.directory.rglob("*") if path.is_file()}
    assert {"index.html", "pyodide.js", "pyodide_worker.js", "service_worker.js"} <= there
    assert {f"pyodide-314.0.7/{name}" for name in RUNTIME} <= there
    core = set(zipfile.ZipFile(core_of(site)).namelist())
    assert {"vramcast/web/service.py", "vramcast/py.typed", "yaml/__init__.py", "msgspec/__init__.py"} <= core
    assert {f"vramcast/{name}" for name in (*replay_page.PARTS, QUESTIONS)} <= core  # what it shares with the page
    assert not [name for name in core if "/tracing/" in name or name.endswith((".pyc", ".so", "web/server.py"))]
    index = (site.directory / "index.html").read_text(encoding="utf-8")
    assert '<meta name="vramcast-backend" content="pyodide">' in index
    assert content_policy(in_browser=True) in index
    assert "default-src 'none'" in index and "http" not in content_policy(in_browser=True)
    assert "unsafe-eval" not in content_policy() and "frame-ancestors 'none'" in content_policy()


def test_equal_inputs_make_equal_sites_and_numpy_one_that_searches(tmp_path: Path, pyodide: Path) -> None:
    written = Path(static_site.__file__).parent / "__pycache__" / "half.pyc.140234"  # as another process leaves it
    archives = []
    for name in ("one", "two"):
        site = build(tmp_path / name, pyodide=pyodide, wheels=[wheel(tmp_path)])
        archives.append(core_of(site).name)
        written.parent.mkdir(exist_ok=True)
        written.touch()
    written.unlink()
    assert archives[0] == archives[1]
    numpy = wheel(tmp_path, WHEEL.replace("msgspec-0.22.0", "numpy-2.4.6"), "numpy/__init__.py")
    searching = build(tmp_path / "searching", pyodide=pyodide, wheels=[wheel(tmp_path), numpy])
    plain = build(tmp_path / "plain", pyodide=pyodide, wheels=[wheel(tmp_path)])
    assert not searching.lacks and "lists no NumPy" in plain.lacks


@pytest.mark.parametrize(("sent", "lacks"), [(NUMPY, ""), (b"another file", "is not the file that the release lists")])
def test_numpy_comes_from_the_release_and_is_held_against_its_list(
    tmp_path: Path, pyodide: Path, monkeypatch: pytest.MonkeyPatch, sent: bytes, lacks: str
) -> None:
    listed = LOCK | {"packages": {"numpy": {"file_name": NUMPY_NAME, "sha256": sha256(NUMPY).hexdigest()}}}
    (pyodide / "pyodide-lock.json").write_text(json.dumps(listed), encoding="utf-8")
    release = tmp_path / "releases" / "v314.0.7" / "full"
    release.mkdir(parents=True)
    (release / NUMPY_NAME).write_bytes(sent)
    host = ThreadingHTTPServer(("127.0.0.1", 0), partial(SimpleHTTPRequestHandler, directory=str(release.parents[1])))
    Thread(target=host.serve_forever, daemon=True).start()
    monkeypatch.setattr(static_site, "RELEASES", f"http://127.0.0.1:{host.server_address[1]}")
    monkeypatch.setattr(static_site, "_write_core", lambda archive, wheels: archive.write_bytes(
        b"".join(one.read_bytes() for one in wheels)))
    site = build(tmp_path / "site", pyodide=pyodide, wheels=[wheel(tmp_path)])
    host.shutdown()
    assert (lacks in site.lacks) and bool(site.lacks) == bool(lacks)
    assert (sent in core_of(site).read_bytes()) == (not lacks)


def test_what_pages_begin_with_is_answered_without_python() -> None:
    known, beside = prepared()
    first = next(reply for asked, reply in known.items() if asked.startswith("POST /api/train ["))
    assert first["verdict"] == "fits"
    assert {"GET /api/version", "GET /api/version?lang=zh", "GET /api/words?lang=en", "GET /api/gpus"} <= known.keys()
    assert sum(asked.startswith("POST") for asked in known) >= 2 * 6
    assert all(reply in beside for reply in known.values() if isinstance(reply, str))


def test_a_folder_with_something_in_it_is_left_alone(tmp_path: Path, pyodide: Path) -> None:
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "thesis.txt").write_text("years of work", encoding="utf-8")
    with pytest.raises(InvalidSpec, match="not an empty folder"):
        build(tmp_path / "mine", pyodide=pyodide, wheels=[wheel(tmp_path)])
    assert [path.name for path in (tmp_path / "mine").iterdir()] == ["thesis.txt"]


@pytest.mark.parametrize(("name", "why"), [
    ("numpy-2.4.6-cp311-cp311-manylinux_2_17_x86_64.whl", "pyemscripten_2026_0_wasm32"),
    ("numpy.tar.gz", "is no wheel"),
])
def test_a_wheel_for_another_machine_is_refused(tmp_path: Path, pyodide: Path, name: str, why: str) -> None:
    with pytest.raises(InvalidSpec, match=why):
        build(tmp_path / "site", pyodide=pyodide, wheels=[wheel(tmp_path, name)])
    assert not (tmp_path / "site").exists()


def test_a_broken_wheel_leaves_no_half_site(tmp_path: Path, pyodide: Path) -> None:
    (tmp_path / WHEEL).write_bytes(b"not a zip")
    with pytest.raises(SourceError, match="cannot be unpacked"):
        build(tmp_path / "site", pyodide=pyodide, wheels=[tmp_path / WHEEL])
    assert not (tmp_path / "site").exists()


def test_a_folder_without_pyodide_is_said(tmp_path: Path, pyodide: Path) -> None:
    (pyodide / "pyodide.asm.wasm").unlink()
    with pytest.raises(SourceError, match=r"lacks pyodide\.asm\.wasm"):
        runtime_in(pyodide)
    (pyodide / "pyodide.asm.wasm").touch()
    (pyodide / "pyodide-lock.json").write_text("[]", encoding="utf-8")
    with pytest.raises(SourceError, match="does not say"):
        runtime_in(pyodide)


def test_without_npm_one_sentence_says_what_to_give(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(static_site.shutil, "which", lambda name: None)
    with pytest.raises(SourceError, match="give --pyodide FOLDER"):
        build(tmp_path / "site")


def test_without_pip_one_sentence_says_what_to_give(
    tmp_path: Path, pyodide: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(static_site, "find_spec", lambda name: None)
    with pytest.raises(SourceError, match="pip, which fetches msgspec for Pyodide"):
        build(tmp_path / "site", pyodide=pyodide)


def test_what_cannot_be_fetched_is_one_sentence(tmp_path: Path, pyodide: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(*command: object, **how: object) -> None:
        raise static_site.subprocess.CalledProcessError(1, "pip", stderr="ERROR: no network\n")

    monkeypatch.setattr(static_site, "find_spec", lambda name: name)  # also where this environment has no pip
    monkeypatch.setattr(static_site.subprocess, "run", refused)
    with pytest.raises(SourceError, match=r"msgspec for Pyodide could not be fetched \(ERROR: no network\)"):
        build(tmp_path / "site", pyodide=pyodide)
