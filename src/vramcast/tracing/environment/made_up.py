"""Data that a script reads from disk and that is not there: folders of images, texts, rows, annotations, sounds.

A script is started anew with a stand-in only where it ended for want of the file or the folder: one that has an answer
of its own to a missing file keeps it. Below a folder that stands in every file of a known kind that is opened is there.
Stand-ins lie in the overlay, so nothing is written where the script looks. What decides sizes of a network, as a
configuration does, is not made up.
[coco] cocodataset/cocoapi PythonAPI/pycocotools/coco.py `createIndex`: what annotations hold
"""

from __future__ import annotations

import gzip
import json
import linecache
import os
import re
import string
import traceback
import wave
from collections.abc import Callable, Iterator, Sequence
from functools import cache
from importlib import import_module
from itertools import count, islice, product
from pathlib import Path, PurePath
from types import ModuleType
from typing import Any, Final
from zipfile import ZipFile

import numpy as np

from vramcast.catalogue.index import MODELS
from vramcast.errors import Note
from vramcast.tracing.environment.datasets import HEIGHT, TOKENS, WIDTH
from vramcast.tracing.environment.hub import sentencepiece_model, write_pieces
from vramcast.tracing.environment.overlay import SOUNDS, Overlay
from vramcast.tracing.environment.repositories import files_of
from vramcast.tracing.environment.rows import (
    BRIEF,
    LONG,
    ROWS,
    SENTENCE,
    SEQUENCE,
    SERIES,
    SHORT,
    columns_in,
    make_series,
    picture,
    text_of,
)
from vramcast.tracing.environment.saving import OF_TENSORS
from vramcast.tracing.packages import UNREACHED, is_installed_at, project_text
from vramcast.tracing.simulation import Simulation, running

FOLDER: Final = "{}: there is no such folder; {} files stand in: {}"
SHARDS: Final = "{}: there is no such folder; a file of {:,} zeros stands in for the tokens of each split"
BELOW: Final = "{}: files that are opened there are not there; black images, silence and the like stand in"
TEXT: Final = (
    "{}: there is no such file; text of {:,} characters stands in, {} different ones and {:,} different words, from "
    "which the script may take its vocabulary (--data vocab=COUNT)"
)
NAMES: Final = "{}: there is no such file; a list of {} names stands in, and black images of these names"
LINES: Final = "{}: there is no such file; {:,} rows of {} stand in, texts of up to {:,} tokens (--data seq=COUNT)"
ANNOTATED: Final = "{}: there is no such file; annotations of {:,} images with {} objects each stand in"
REPOSITORY: Final = "{}: there is no such folder; the files of {} stand in, as they would be fetched there"
MULTIPLE: Final = 256  # that Llama's inner width is one of
PIECES_FILE: Final = "original/tokenizer.model"  # as repositories of Llama 3 have it
IMAGE: Final = "{}: there is no such file; a black image of {} x {} stands in (--data image=SIDE)"
ARCHIVE: Final = "{}: there is no such file; an archive of {} black images of {} x {} stands in (--data image=SIDE)"
CHECKPOINT: Final = "{}: there is no such file; an empty one stands in"
VOCABULARY_OF: Final = "{}: there is no such file; a vocabulary of {:,} pieces stands in, of up to 3 characters each"
VOCABULARY: Final = 32_000  # of Llama's first two and Mistral's first tokenizers
SOUND: Final = "{}: there is no such file; silence of {} s at {:,} Hz stands in"
FILES: Final = 512  # of a folder
NAME: Final = "{}_{:06}{}"  # of an image: many scripts read its class there
CHARACTERS: Final = 1 << 19
WORDS: Final = 10_000
WORDS_OF: Final = {
    "wikitext-103": 267_735, "wikitext103": 267_735, "wikitext-2": 33_278, "wikitext2": 33_278,
}
"""Part of a path -> words of that corpus's vocabulary [Merity et al., arXiv:1609.07843, table 1]; others have as many
as Penn Treebank [Mikolov et al., Interspeech 2010]."""
WORDS_A_LINE: Final = 16
SIDES: Final = re.compile(r"(?<!\d)(\d{2,4})x\1(?!\d)")
CLASSES_OF: Final = {"cifar100": 100, "cifar10": 10, "imagenet": 1000}
"""Part of an archive's name -> classes; beside its images they lie as StyleGAN2-ADA and EDM read them [NVlabs/edm
training/dataset.py `ImageFolderDataset._load_raw_labels`]."""
LETTERS: Final = string.ascii_letters + " !$&',-.3:;?"
"""With a new line the 65 characters of Tiny Shakespeare, as networks of characters take their vocabulary from there
[karpathy/nanoGPT data/shakespeare_char/readme.md]."""
WHOLE: Final = {"enwik8": 10**8, "text8": 10**8}
"""Texts whose length is known, and which scripts split at places of their own [Hutter, prize.hutter1.net]."""
OBJECTS: Final = 7  # of an image [Lin et al., ECCV 2014, arXiv:1405.0312, section 5: 7.7 on average]
CATEGORIES: Final = 90  # numbers of COCO's 80
RATE, SECONDS = 22_050, 10  # of sounds, as corpora of speech synthesis have it
KINDS: Final = {".jpg": "JPEG", ".jpeg": "JPEG", ".png": "PNG", ".bmp": "BMP", ".tif": "TIFF", ".webp": "WEBP"}
SPEAKS_OF_IMAGES: Final = re.compile(r"\bPIL\b|\bcv2\b|\bimread\b|\bread_image\b|\bload_image\b|\bimageio\b")
SPEAKS_OF_SOUNDS: Final = re.compile(r"\b(?:librosa|soundfile|torchaudio|wavfile)\b")
SPEAKS_OF_TOKENS: Final = re.compile(r"tokens?\b.*\n?.*\bnp\.load\(|\bnp\.load\((?:.*\n){0,3}.*tokens?\b")
"""Shards of tokens that NumPy reads whole."""
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
ABSENT: Final = re.compile(r"\bnot found\b|\bdoes(?: not|n't) exist\b|\bmissing\b|\bcannot find\b", re.IGNORECASE)
"""What says that something is not there, which it may name without the folders that lead to it."""
LOOKS: Final = re.compile(r"^\s*(?:if|assert)\b.*\b(?:exists|is_?file|is_?dir)\(", re.MULTILINE)
"""What looks whether something is there, before an error that need not say what."""
LINES_BEFORE: Final = 2
LISTING: Final = "names:"
"""Before the path of a text that is made anew, as a list of names."""
LEAST_NAME: Final = 5  # of a file, for it to be told from other words [characters]
OF_CLASSES: Final = re.compile(r"mask|segment|label|annot|gtfine", re.IGNORECASE)
"""Names of folders whose images hold a class for each pixel."""


def lacking(overlay: Overlay, error: BaseException, script: str, printed: str = "") -> str:
    """What a script ended for want of, and that can be made up: an absolute path, "" where there is none.

    Args:
        printed: the end of what it printed, which says why it exits
    """
    if isinstance(error, SystemExit) and error.__context__ is not None:
        error = error.__context__  # which Hydra prints, and exits
    frames = traceback.extract_tb(error.__traceback__)
    said = str(error) or (frames[-1].line or "" if frames else "")  # of a bare assertion
    said = printed if isinstance(error, SystemExit) else said
    named = os.fsdecode(error.filename) if isinstance(error, FileNotFoundError) and error.filename else ""
    sought = overlay.vacant | overlay.missed
    paths = [path for path in sought if not PurePath(path).suffix] if EMPTY.search(said) else []
    paths += overlay.missed if NOT_FOUND.search(said) else ()
    if ABSENT.search(said):
        names = ((PurePath(path).name, path) for path in overlay.missed)
        paths += [path for name, path in names if len(name) >= LEAST_NAME and name in said]
    paths += [path for path, given in sought.items() if given == named or (len(given) > 1 and given in said)]
    text = project_text(script)
    if LOOKS.search(_lines_to(frames)):
        paths += overlay.missed
    if isinstance(error, FileNotFoundError):  # of what `torch.load` went on without: what else it says nobody knows
        paths = [path for path in paths if not path.endswith(OF_TENSORS)]
    if listing := _list_of_names(overlay):
        return listing
    path = next((path for path in reversed(paths) if _is_made(path, text)), "")
    if folder := _repository(path):
        return folder[0]
    if path.endswith(SOUNDS):  # of folders of speakers one by one: whatever of the way there is missing
        below = [each for each in PurePath(path).parents if not Path(each).exists()]
        return str(below[-1]) if below else path
    is_one_of_many = PurePath(path).suffix.lower() in KINDS
    return str(PurePath(path).parent) if is_one_of_many and PurePath(path).parent != Path.cwd() else path


def _lines_to(frames: Sequence[traceback.FrameSummary]) -> str:
    """The line that raised and those before it."""
    if not frames or is_installed_at(frames[-1].filename):
        return ""
    line = frames[-1].lineno or 0
    return "".join(linecache.getlines(frames[-1].filename)[max(0, line - LINES_BEFORE - 1):line])


def _is_made(path: str, text: str) -> bool:
    suffix = PurePath(path).suffix.lower()
    if is_installed_at(path):
        return False
    if _repository(path):
        return True
    if not suffix and PurePath(path).name in WHOLE:
        return not Path(path).exists()
    if not suffix:
        return any(words.search(text) for words in (SPEAKS_OF_IMAGES, SPEAKS_OF_SOUNDS, SPEAKS_OF_TOKENS))
    if suffix == ".csv":
        return PurePath(path).stem in SERIES
    if suffix == ".zip":  # of images alone, whose size networks may take from there
        return bool(_side_of(path) and SPEAKS_OF_IMAGES.search(text))
    if suffix == ".gz":
        return PurePath(path).stem in WHOLE or PurePath(path).stem.endswith(".txt")
    return suffix in MAKERS and (not suffix.startswith(".json") or bool(ANNOTATIONS.search(path) or _columns(text)))


def _repository(path: str) -> tuple[str, str] | None:
    """The folder that is not there and is named as a repository of the hub, and which: a path is it or leads there."""
    found = _named_repository(path)
    return None if found is None or Path(found[0]).is_dir() else found


@cache
def _named_repository(path: str) -> tuple[str, str] | None:
    for folder in (PurePath(path), *PurePath(path).parents[:2]) if path else ():
        names = MODELS.aliases
        whole = "/".join(folder.parts[-2:]).lower()
        found = whole if whole in names else next(
            (name for name in names if "/" in name and name.rpartition("/")[2] == folder.name.lower()), ""
        )
        if found and "-" in folder.name:
            return str(folder), found
    return None


def make(path: str, overlay: Overlay, simulation: Simulation, script: str) -> None:
    """Let a path be there for this run, and say so."""
    if found := _repository(path):
        files = files_of(found[1]) or {}
        for name, made in {**files, PIECES_FILE: write_pieces}.items():
            made(Path(overlay.made_path(f"{path}/{name}")), simulation)
        _make_original(path, overlay)
        simulation.assumptions.note(Note(REPOSITORY, path, found[1]))
        return
    text = project_text(script)
    if path.startswith(LISTING):
        _make_list(path.removeprefix(LISTING), overlay, text, simulation)
        return
    if PurePath(path).suffix or PurePath(path).name in WHOLE:
        place = Path(overlay.made_path(path))
        maker = MAKERS.get(place.suffix.lower(), _make_text)
        simulation.assumptions.note(maker(place, path, text, simulation))
        if place.suffix == ".txt":
            overlay.texts.append(path)
        return
    overlay.made.append(path)
    overlay.make = lambda given: _below(given, overlay, text, simulation)
    simulation.assumptions.note(_folder(path, overlay, text, simulation))


def _list_of_names(overlay: Overlay) -> str:
    """A text that stands in and whose lines the script takes for names of images, "" where there is none."""
    for path in overlay.texts:
        with Path(overlay.made_path(path)).open(encoding="utf-8") as file:
            line = file.readline().strip()
        names = {line, line.partition(" ")[0]}
        if any(PurePath(missed).stem in names and _is_image(missed) for missed in overlay.missed):
            return LISTING + path
    return ""


def _is_image(path: str) -> bool:
    return PurePath(path).suffix.lower() in KINDS


def _make_list(path: str, overlay: Overlay, text: str, simulation: Simulation) -> None:
    """Write names in the place of a text; an image of one of them is there wherever it is looked for."""
    names = [f"{number:06}" for number in range(FILES)]
    Path(overlay.made_path(path)).write_text("\n".join(names) + "\n", encoding="utf-8")
    overlay.named = frozenset(names)
    overlay.make_named = lambda given: None if not _is_image(given) else MAKERS[PurePath(given).suffix.lower()](
        Path(overlay.made_path(given)), given, text, simulation
    )
    simulation.assumptions.note(Note(NAMES, path, FILES))


def _make_original(path: str, overlay: Overlay) -> None:
    """Beside them what scripts of Meta's own format read, where the config is that of a plain Llama
    [meta-llama/llama llama/model.py `FeedForward`]."""
    config = json.loads(Path(overlay.made_path(f"{path}/config.json")).read_text(encoding="utf-8"))
    width = config.get("hidden_size")
    inner = -(-int(8 * (width or 0) / 3) // MULTIPLE) * MULTIPLE
    if config.get("model_type") != "llama" or config.get("intermediate_size") != inner:
        return
    params = {
        "dim": width, "multiple_of": MULTIPLE, "n_heads": config["num_attention_heads"],
        "n_layers": config["num_hidden_layers"], "norm_eps": config.get("rms_norm_eps", 1e-5), "vocab_size": -1,
    }
    Path(overlay.made_path(f"{path}/params.json")).write_text(json.dumps(params), encoding="utf-8")
    Path(overlay.made_path(f"{path}/consolidated.00.pth")).touch()
    vocabulary = sentencepiece_model(config["vocab_size"])
    Path(overlay.made_path(f"{path}/tokenizer.model")).write_bytes(vocabulary)


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
    if SPEAKS_OF_TOKENS.search(text) and not SPEAKS_OF_IMAGES.search(text):
        for split in ("train", "val"):
            np.save(Path(place, f"{split}_000000.npy"), np.zeros(TOKENS, dtype=np.uint16))
        return Note(SHARDS, path, TOKENS)
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


def _side_of(path: str) -> int:
    """Pixels a side of images in an archive: those asked for, or those that its name says; 0 where nobody says so."""
    simulation, named = running(), SIDES.search(PurePath(path).stem)
    asked = 0 if simulation is None else simulation.data.get("image", 0)
    return asked or (int(named[1]) if named else 0)


def _make_archive(place: Path, path: str, _text: str, _simulation: Simulation) -> Note:
    side = _side_of(path)
    with ZipFile(place, "w") as archive:
        names = [NAME.format(number % 2, number, ".png") for number in range(FILES)]
        for name in names:
            archive.writestr(name, picture(side, side))
        classes = next((count for part, count in CLASSES_OF.items() if part in PurePath(path).stem.lower()), 0)
        if classes:
            labels = [[name, (number - FILES) % classes] for number, name in enumerate(names)]
            archive.writestr("dataset.json", json.dumps({"labels": labels}))
    return Note(ARCHIVE, path, FILES, side, side)


def _make_text(place: Path, path: str, _text: str, simulation: Simulation) -> Note:
    if characters := WHOLE.get(PurePath(path).stem):
        line = f"{SENTENCE.strip()}\n"
        text, words = (line * (characters // len(line) + 1))[:characters], len({*SENTENCE.split()})
    else:
        known = (count for part, count in WORDS_OF.items() if part in path.lower())
        words = simulation.data.get("vocab") or next(known, WORDS)
        text = _text_of_words(words, CHARACTERS)
    place.write_bytes(gzip.compress(text.encode(), 1) if place.suffix == ".gz" else text.encode())
    return Note(TEXT, path, len(text), len({*text[: len(text) // 2]}), words)


def _text_of_words(words: int, characters: int) -> str:
    """Lines of so many different words, and one of every letter, over again until they have that length."""
    first = LETTERS.split()  # two: a space is among them
    letters = string.ascii_lowercase
    made = ("".join(some) for length in count(4) for some in product(letters, repeat=length))
    all_words = [*first, *islice(made, max(0, words - len(first)))]
    lines = [LETTERS, *(" ".join(some) for some in batched(all_words[len(first):], WORDS_A_LINE))]
    text = "\n".join(lines) + "\n"
    return text * max(1, characters // len(text))


def batched(values: Sequence[str], size: int) -> Iterator[Sequence[str]]:
    """Parts of so many each; itertools has it since Python 3.12."""
    return (values[start : start + size] for start in range(0, len(values), size))


def _make_empty(place: Path, path: str, _text: str, _simulation: Simulation) -> Note:
    """What `torch.load` takes for a checkpoint that is not there; scripts look whether it is before."""
    place.touch()
    return Note(CHECKPOINT, path)


def _make_vocabulary(place: Path, path: str, _text: str, _simulation: Simulation) -> Note:
    place.write_bytes(sentencepiece_model(VOCABULARY))
    return Note(VOCABULARY_OF, path, VOCABULARY)


def _make_series(place: Path, path: str, _text: str, _simulation: Simulation) -> Note:
    return make_series(place, path)


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
    **dict.fromkeys(KINDS, _make_image), **dict.fromkeys(SOUNDS, _make_sound), **dict.fromkeys(OF_TENSORS, _make_empty),
    ".txt": _make_text, ".gz": _make_text, ".csv": _make_series, ".zip": _make_archive, ".json": _make_rows,
    ".jsonl": _make_rows, ".model": _make_vocabulary,
}
OPENS: Final = {
    "cv2": "imread", "sentencepiece": "SentencePieceProcessor.LoadFromFile",
    "soundfile": "SoundFile.__init__", "torchvision.io.image": "read_file",
}
"""Module -> what opens a file in C there: its path is the first argument, or behind the object."""


def led(simulation: Simulation, opens: Any, /, *args: Any, **kwargs: Any) -> Any:
    """What opens a file in C by a path, led to where it is for this run."""
    given = tuple(simulation.led(arg) if isinstance(arg, (str, os.PathLike)) else arg for arg in args[:2])
    return opens(*given, *args[2:], **kwargs)


def tokenizers_of_files(module: ModuleType) -> None:
    """Of `tokenizers`, whose class nobody may change: another is in its place."""
    real: Any = vars(module)["Tokenizer"]

    class InPlace(type):
        def __instancecheck__(cls, instance: object) -> bool:
            return isinstance(instance, real)

        def __getattr__(cls, name: str) -> Any:
            return getattr(real, name)

        def __call__(cls, *args: Any, **kwargs: Any) -> Any:
            return real(*args, **kwargs)

    def from_file(path: Any) -> Any:
        simulation = running()
        return real.from_file(path if simulation is None else str(simulation.led(path)))

    vars(module)["Tokenizer"] = InPlace("Tokenizer", (), {"from_file": staticmethod(from_file)})


def _columns(text: str) -> tuple[str, ...]:
    """Columns of text that the script reads, of which one at least is known by its name."""
    names = tuple(name for name in columns_in(text, frozenset()) if name in (*LONG, *BRIEF))
    return names if names != ("text",) else ()
