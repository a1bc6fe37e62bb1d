"""Data that a script reads from disk and that is not there: folders of images, texts, rows, annotations, sounds.

A script is started anew with a stand-in only where it ended for want of the file or the folder: one that has an answer
of its own to a missing file keeps it. Below a folder that stands in every file of a known kind that is opened is there.
Stand-ins lie in the overlay, so nothing is written where the script looks. What decides sizes of a network, as a
configuration does, is not made up.
[coco] cocodataset/cocoapi PythonAPI/pycocotools/coco.py `createIndex`: what annotations hold
"""

from __future__ import annotations

import json
import os
import re
import traceback
import wave
from collections.abc import Callable
from importlib import import_module
from pathlib import Path, PurePath
from typing import Any, Final

from vramcast.errors import Note
from vramcast.tracing.environment.datasets import HEIGHT, WIDTH
from vramcast.tracing.environment.overlay import Overlay
from vramcast.tracing.environment.rows import BRIEF, LONG, ROWS, SENTENCE, SEQUENCE, SHORT, columns_in, text_of
from vramcast.tracing.packages import UNREACHED, is_installed_at, project_text
from vramcast.tracing.simulation import Simulation

FOLDER: Final = "{}: there is no such folder; {} files stand in: {}"
BELOW: Final = "{}: files that are opened there are not there; black images, silence and the like stand in"
TEXT: Final = "{}: there is no such file; English text of {:,} characters stands in"
LINES: Final = "{}: there is no such file; {:,} rows of {} stand in, texts of up to {:,} tokens (--data seq=COUNT)"
ANNOTATED: Final = "{}: there is no such file; annotations of {:,} images with {} objects each stand in"
IMAGE: Final = "{}: there is no such file; a black image of {} x {} stands in (--data image=SIDE)"
SOUND: Final = "{}: there is no such file; silence of {} s at {:,} Hz stands in"
FILES: Final = 512  # of a folder
NAME: Final = "{}_{:06}{}"  # of an image: many scripts read its class there
CHARACTERS: Final = 1 << 20
OBJECTS: Final = 7  # of an image [Lin et al., ECCV 2014, arXiv:1405.0312, section 5: 7.7 on average]
CATEGORIES: Final = 90  # numbers of COCO's 80
RATE, SECONDS = 22_050, 10  # of sounds, as corpora of speech synthesis have it
KINDS: Final = {".jpg": "JPEG", ".jpeg": "JPEG", ".png": "PNG", ".bmp": "BMP", ".tif": "TIFF", ".webp": "WEBP"}
SOUNDS: Final = (".wav", ".flac")  # written as .wav is, which readers tell by what is in it
SPEAKS_OF_IMAGES: Final = re.compile(r"\bPIL\b|\bcv2\b|\bimread\b|\bread_image\b|\bload_image\b|\bimageio\b")
SPEAKS_OF_SOUNDS: Final = re.compile(r"\b(?:librosa|soundfile|torchaudio|wavfile)\b")
NAMED_KIND: Final = re.compile(r"[\"'*]\.(jpe?g|png|bmp|webp)\b")
ANNOTATIONS: Final = re.compile(r"instances_\w+\.json$")
EMPTY: Final = re.compile(
    r"num_samples=0|\bempty\b|(?:division|modulo) by zero|index out of range|with size 0\b|"
    r"\bno .*\b(?:found|images?|files?)\b", re.IGNORECASE,
)
"""What is said where a folder had nothing in it."""
NOT_FOUND: Final = re.compile(
    r"\bdata ?(?:set|base)? .*(?:not found|does not exist|doesn't exist|is missing)|"
    r"^assert .*\b(?:exists|is_?file|is_?dir)\b|" + UNREACHED.pattern, re.IGNORECASE,
)
"""What is said where what was looked for last is not there: before data are fetched it is looked whether they are."""
OF_CLASSES: Final = re.compile(r"mask|segment|label|annot|gtfine", re.IGNORECASE)
"""Names of folders whose images hold a class for each pixel."""


def lacking(overlay: Overlay, error: BaseException, script: str) -> str:
    """What a script ended for want of, and that can be made up: an absolute path, "" where there is none."""
    if isinstance(error, SystemExit) and error.__context__ is not None:
        error = error.__context__  # which Hydra prints, and exits
    frames = traceback.extract_tb(error.__traceback__)
    said = str(error) or (frames[-1].line or "" if frames else "")  # of a bare assertion
    named = os.fsdecode(error.filename) if isinstance(error, FileNotFoundError) and error.filename else ""
    sought = overlay.vacant | overlay.missed
    paths = [path for path in sought if not PurePath(path).suffix] if EMPTY.search(said) else []
    paths += overlay.missed if NOT_FOUND.search(said) else ()
    paths += [path for path, given in sought.items() if given == named or (len(given) > 1 and given in said)]
    text = project_text(script)
    path = next((path for path in reversed(paths) if _is_made(path, text)), "")
    is_one_of_many = PurePath(path).suffix.lower() in (*KINDS, *SOUNDS)
    return str(PurePath(path).parent) if is_one_of_many and PurePath(path).parent != Path.cwd() else path


def _is_made(path: str, text: str) -> bool:
    suffix = PurePath(path).suffix.lower()
    if is_installed_at(path):
        return False
    if not suffix:
        return bool(SPEAKS_OF_IMAGES.search(text) or SPEAKS_OF_SOUNDS.search(text))
    return suffix in MAKERS and (not suffix.startswith(".json") or bool(ANNOTATIONS.search(path) or _columns(text)))


def make(path: str, overlay: Overlay, simulation: Simulation, script: str) -> None:
    """Let a path be there for this run, and say so."""
    text = project_text(script)
    if PurePath(path).suffix:
        place = Path(overlay.made_path(path))
        simulation.assumptions.note(MAKERS[place.suffix.lower()](place, path, text, simulation))
        return
    overlay.made.append(path)
    overlay.make = lambda given: _below(given, overlay, text, simulation)
    simulation.assumptions.note(_folder(path, overlay, text, simulation))


def _below(path: str, overlay: Overlay, text: str, simulation: Simulation) -> None:
    """A file or a folder below one that stands in."""
    suffix = PurePath(path).suffix.lower()
    root = next(root for root in overlay.made if path.startswith(root + os.sep))
    if not suffix:
        _folder(path, overlay, text, simulation)
    elif suffix in MAKERS and _is_made(path, text):
        MAKERS[suffix](Path(overlay.made_path(path)), path, text, simulation)
    else:
        return
    simulation.assumptions.note(Note(BELOW, root))


def _folder(path: str, overlay: Overlay, text: str, simulation: Simulation) -> Note:
    """Images of the kind that the script names, or sounds; nothing more where it holds files of its own."""
    if overlay.holds_something(path):
        return Note(BELOW, path)
    place = overlay.made_path(path)
    Path(place).mkdir(parents=True, exist_ok=True)
    named = NAMED_KIND.search(text)
    is_heard = SPEAKS_OF_SOUNDS.search(text) and not SPEAKS_OF_IMAGES.search(text)
    suffix = SOUNDS[0] if is_heard else f".{named[1]}" if named else ".jpg"
    first = Path(place, NAME.format(0, 0, suffix))
    one = MAKERS[suffix](first, NAME.format(0, 0, suffix), text, simulation)
    for number in range(1, FILES):
        os.link(first, Path(place, NAME.format(number % 2, number, suffix)))
    return Note(FOLDER, path, FILES, one)


def _image(place: Path, simulation: Simulation) -> tuple[int, int]:
    side = simulation.data.get("image")
    size = (side, side) if side else (WIDTH, HEIGHT)
    image: Any = import_module("PIL.Image")
    mode = "L" if OF_CLASSES.search(place.parent.name) else "RGB"
    image.new(mode, size).save(place, KINDS[place.suffix.lower()])
    return size


def _make_image(place: Path, path: str, _text: str, simulation: Simulation) -> Note:
    width, height = _image(place, simulation)
    return Note(IMAGE, path, width, height)


def _make_text(place: Path, path: str, _text: str, _simulation: Simulation) -> Note:
    line = SENTENCE.strip() + "\n"
    place.write_text(line * (CHARACTERS // len(line)), encoding="utf-8")
    return Note(TEXT, path, CHARACTERS)


def _make_rows(place: Path, path: str, text: str, simulation: Simulation) -> Note:
    if ANNOTATIONS.search(path):
        return _make_annotations(place, path, simulation)
    names, tokens = _columns(text), simulation.data.get("seq", SEQUENCE)
    count = simulation.data.get("rows", ROWS)
    row = {name: text_of(tokens // SHORT if name in BRIEF else tokens) for name in names}
    rows = [row] * count
    lines = "\n".join(map(json.dumps, rows)) if place.suffix == ".jsonl" else json.dumps(rows)
    place.write_text(lines, encoding="utf-8")
    return Note(LINES, path, count, ", ".join(names), tokens)


def _make_annotations(place: Path, path: str, simulation: Simulation) -> Note:
    side = simulation.data.get("image")
    width, height = (side, side) if side else (WIDTH, HEIGHT)
    box = [0.0, 0.0, width / 2, height / 2]
    outline = [0.0, 0.0, width / 2, 0.0, width / 2, height / 2, 0.0, height / 2]
    place.write_text(json.dumps({
        "info": {}, "licenses": [],
        "images": [
            {"id": number, "file_name": f"{number:012}.jpg", "width": width, "height": height}
            for number in range(FILES)
        ],
        "annotations": [
            {"id": number, "image_id": number // OBJECTS, "category_id": number % CATEGORIES + 1, "bbox": box,
             "area": box[2] * box[3], "iscrowd": 0, "segmentation": [outline]}
            for number in range(FILES * OBJECTS)
        ],
        "categories": [{"id": number, "name": str(number)} for number in range(1, CATEGORIES + 1)],
    }), encoding="utf-8")
    return Note(ANNOTATED, path, FILES, OBJECTS)


def _make_sound(place: Path, path: str, _text: str, _simulation: Simulation) -> Note:
    with wave.open(str(place), "wb") as file:
        file.setparams((1, 2, RATE, RATE * SECONDS, "NONE", ""))
        file.writeframes(bytes(2 * RATE * SECONDS))
    return Note(SOUND, path, SECONDS, RATE)


MAKERS: Final[dict[str, Callable[[Path, str, str, Simulation], Note]]] = {
    **dict.fromkeys(KINDS, _make_image), ".txt": _make_text, ".json": _make_rows, ".jsonl": _make_rows,
    **dict.fromkeys(SOUNDS, _make_sound),
}
def led(simulation: Simulation, opens: Any, /, *args: Any, **kwargs: Any) -> Any:
    """What opens a file in C by a path, led to where it is for this run."""
    given = tuple(simulation.led(arg) if isinstance(arg, (str, os.PathLike)) else arg for arg in args[:2])
    return opens(*given, *args[2:], **kwargs)


OPENS: Final = {"cv2": "imread", "soundfile": "SoundFile.__init__", "torchvision.io.image": "read_file"}
"""Module -> what opens a file in C there: its path is the first argument, or behind the object."""


def _columns(text: str) -> tuple[str, ...]:
    """Columns of text that the script reads, of which one at least is known by its name."""
    names = tuple(name for name in columns_in(text, frozenset()) if name in (*LONG, *BRIEF))
    return names if names != ("text",) else ()
