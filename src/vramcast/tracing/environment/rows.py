"""Rows that stand in for a data set of the hub that cannot be fetched, with the columns that the script names.

Which columns a data set has nobody knows here: a trainer of TRL wants those of its kind [trl docs/source/
dataset_formats.md], another script names those that it reads. The length of texts is what matters for memory: it is
told, and `--data seq=` gives it.
"""

from __future__ import annotations

import io
import linecache
import re
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import wraps
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import Any, Final

from vramcast.tracing.environment.hub import answers
from vramcast.tracing.simulation import Simulation, running

SEQUENCE, ROWS, IMAGE = 1024, 512, 512
"""Tokens of a text, rows, pixels a side, where `--data` says nothing."""
CHARACTERS: Final = 4  # of a token, as of the tokenizer that stands in
SHORT: Final = 4  # prompts, questions and captions are so much shorter
SENTENCE: Final = "the quick brown fox jumps over the lazy dog and runs away from all of them. "
STANDS_IN: Final = (
    "{}: the hub does not answer; {:,} rows of {} stand in, texts of {:,} tokens, prompts, questions and captions of a "
    "quarter of that (--data seq=COUNT)"
)
LONG: Final = (
    "article", "completion", "content", "context", "dialogue", "document", "highlights", "output", "response", "review",
    "solution", "summary", "target", "text",
)
BRIEF: Final = (
    "answer", "caption", "hypothesis", "input", "instruction", "premise", "prompt", "query", "question", "sentence",
    "sentence1", "sentence2", "sentence_A", "sentence_B", "title", "additional_feature", "edit_prompt",
)
CONVERSATIONS: Final = ("conversations", "messages")
LABELS: Final = ("coarse_label", "fine_label", "label", "labels")
IMAGES: Final = ("conditioning_image", "edited_image", "image", "images", "img", "input_image", "original_image")
TRAINERS: Final[Mapping[str, tuple[str, ...]]] = {
    "SFT": ("messages",), "GKD": ("messages",), "Distillation": ("messages",),
    "DPO": ("chosen", "rejected"), "CPO": ("chosen", "rejected"), "ORPO": ("chosen", "rejected"),
    "Reward": ("chosen", "rejected"), "KTO": ("prompts", "completions", "desirable"),
    "BCO": ("prompts", "completions", "desirable"), "GRPO": ("prompts", "solution"), "RLOO": ("prompts", "solution"),
    "OnlineDPO": ("prompts",), "XPO": ("prompts",), "NashMD": ("prompts",),
}
"""Trainer of TRL -> what a conversational data set of its kind has; the first whose class a script names."""
NAMED: Final = {"prompts": "prompt", "completions": "completion", "desirable": "label"}
TRAINER: Final = re.compile(rf"\b({'|'.join(TRAINERS)})Trainer\b")
QUOTED: Final = re.compile(r"""["'](\w+)["']""")
OWN_TEXT: Final = ("dataset_text_field", "formatting_func")
SPLITS: Final = ("train", "validation", "test")


@contextmanager
def rows_of_hub(module: ModuleType) -> Iterator[None]:
    """Around `datasets.load`."""
    yield
    vars(module)["load_dataset"] = _or_rows(vars(module)["load_dataset"])


def _or_rows(load: Callable[..., Any]) -> Callable[..., Any]:
    packaged: Any = import_module("datasets.packaged_modules")._PACKAGED_DATASETS_MODULES

    @wraps(load)
    def loaded(path: str, *args: Any, **kwargs: Any) -> Any:
        simulation = running()
        if simulation is None or path in packaged or Path(path).exists():
            return load(path, *args, **kwargs)
        if not answers():
            import_module("datasets.config").HF_HUB_OFFLINE = True  # type: ignore[attr-defined]
        try:
            return load(path, *args, **kwargs)
        except Exception:
            pass  # neither there nor in the cache
        split = kwargs.get("split", args[4] if len(args) > 4 else None)
        return _stand_in(path, split, simulation, is_streamed=bool(kwargs.get("streaming")))

    return loaded


def _stand_in(path: str, split: Any, simulation: Simulation, *, is_streamed: bool) -> Any:
    library: Any = import_module("datasets")
    columns = _columns()
    count = simulation.data.get("rows", ROWS)
    tokens = simulation.data.get("seq", SEQUENCE)
    simulation.assumptions.note(
        STANDS_IN.format(path, count, ", ".join(NAMED.get(name, name) for name in columns), tokens),
        simulation.origins.place(),
    )
    has_images = any(name in IMAGES for name in columns)
    made = {NAMED.get(name, name): _column(library, name, count, simulation, has_images) for name in columns}
    features = library.Features({name: feature for name, (_, feature) in made.items() if feature is not None})
    rows = library.Dataset.from_dict({name: values for name, (values, _) in made.items()})
    for name, feature in features.items():
        rows = rows.cast_column(name, feature)
    rows = rows.to_iterable_dataset() if is_streamed else rows
    if split is None:
        kind: Any = library.IterableDatasetDict if is_streamed else library.DatasetDict
        return type("Splits", (kind,), {"__missing__": lambda _self, _name: rows})(dict.fromkeys(SPLITS, rows))
    return [rows for _ in split] if isinstance(split, (list, tuple)) else rows


def _columns() -> tuple[str, ...]:
    """What the files that lead to the call speak of, and the command line."""
    library = str(Path(import_module("datasets").__file__ or "").parent)
    frame, files = sys._getframe(1), list[str]()
    while frame.f_back is not None:
        name = frame.f_code.co_filename
        if name not in files and not name.startswith((library, "<", str(Path(__file__).parents[2]))):
            files.append(name)
        frame = frame.f_back
    text = "\n".join("".join(linecache.getlines(name)) for name in files)
    trainer = TRAINER.search(text)
    if trainer is not None and not any(word in text for word in OWN_TEXT):
        with_images = ("images",) if re.search(r"[\"'.]images?\b", text) and trainer[1] == "SFT" else ()
        return *TRAINERS[trainer[1]], *with_images
    words = {*QUOTED.findall(text), *(part for word in sys.argv for part in word.split("="))}
    known = (*CONVERSATIONS, *LONG, *BRIEF, *LABELS, *IMAGES, "answers", "idx", "id", "translation")
    found = tuple(name for name in known if name in words)
    return found if any(name in (*LONG, *BRIEF, *CONVERSATIONS, *IMAGES) for name in found) else (*found, "text")


def _column(library: Any, name: str, count: int, simulation: Simulation, has_images: bool) -> tuple[list[Any], Any]:
    """Values of a column, and how they are kept where that is not plain."""
    tokens = simulation.data.get("seq", SEQUENCE)
    long, brief = _text(tokens), _text(tokens // SHORT)
    if name in IMAGES:
        image = {"bytes": _picture(simulation.data.get("image", IMAGE)), "path": None}
        kind = library.Image()
        return ([[image]] * count, library.List(kind)) if name == "images" else ([image] * count, kind)
    if name in LABELS:
        classes = [str(number) for number in range(100 if has_images else 2)]
        return [number % len(classes) for number in range(count)], library.ClassLabel(names=classes)
    asked = {"role": "user", "content": brief}
    said = {"role": "assistant", "content": _text(tokens - tokens // SHORT)}
    values: dict[str, Any] = {
        "messages": [asked, said], "conversations": [asked, said], "chosen": [asked, said], "rejected": [asked, said],
        "prompts": [asked], "completions": [said], "translation": dict.fromkeys(("de", "en", "fr", "ro"), brief),
        "answers": {"text": ["quick"], "answer_start": [4]},
    }
    if name in values:
        return [values[name]] * count, None
    if name == "desirable":
        return [number % 2 == 0 for number in range(count)], None
    if name in ("idx", "id"):
        return list(range(count)), None
    return [long if name in LONG else brief] * count, None


def _text(tokens: int) -> str:
    characters = max(1, tokens) * CHARACTERS
    return (SENTENCE * (characters // len(SENTENCE) + 1))[:characters]


def _picture(side: int) -> bytes:
    """A black one."""
    written = io.BytesIO()
    image: Any = import_module("PIL.Image")
    image.new("RGB", (side, side)).save(written, "PNG")
    return written.getvalue()
