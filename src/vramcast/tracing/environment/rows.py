"""Rows that stand in for a data set of the hub that cannot be fetched, with the columns that the script names.

Which columns a data set has nobody knows here: a trainer of TRL wants those of its kind [trl docs/source/
dataset_formats.md], another script names those that it reads. The length of texts is what matters for memory: it is
told, and `--data seq=` gives it.

Tables of the benchmarks of long forecasts, where their files are not there: a row for each moment, all zeros.

How many variables a table has decides the sizes of a network, so that only these known ones are made.
[Wu] Wu et al., Autoformer, NeurIPS 2021, arXiv:2106.13008, section 4 and appendix A: what each has, and how often
[Zhou] Zhou et al., Informer, AAAI 2021, arXiv:2012.07436: columns of ETT
"""

from __future__ import annotations

import io
import linecache
import re
import sys
from collections import defaultdict
from collections.abc import Callable, Mapping, Set
from datetime import datetime, timedelta
from functools import partial
from importlib import import_module
from inspect import signature
from itertools import chain
from pathlib import Path
from typing import Any, Final, NamedTuple

from vramcast.errors import Note
from vramcast.tracing.environment.hub import answers
from vramcast.tracing.environment.patches import Answer
from vramcast.tracing.packages import own_files
from vramcast.tracing.simulation import Simulation, running

ETT: Final = ("HUFL", "HULL", "MUFL", "MULL", "LUFL", "LULL")
TARGET: Final = "OT"  # of all of them, last
START: Final = datetime(2016, 7, 1)
NO_SERIES: Final = "{}: it is not there; {:,} rows of {} zeros stand in, as many as the published table has"


class Series(NamedTuple):
    """One of them."""

    variables: int
    rows: int
    step: timedelta

    @property
    def columns(self) -> tuple[str, ...]:
        others = ETT if self.variables == len(ETT) + 1 else tuple(map(str, range(self.variables - 1)))
        return *others, TARGET

    @property
    def dates(self) -> list[str]:
        return [str(START + number * self.step) for number in range(self.rows)]


HOUR, DAY = timedelta(hours=1), timedelta(days=1)
SERIES: Final = {
    "ETTh1": Series(7, 17_420, HOUR), "ETTh2": Series(7, 17_420, HOUR), "ETTm1": Series(7, 69_680, HOUR / 4),
    "ETTm2": Series(7, 69_680, HOUR / 4), "electricity": Series(321, 26_304, HOUR),
    "traffic": Series(862, 17_544, HOUR), "weather": Series(21, 52_696, HOUR / 6),
    "exchange_rate": Series(8, 7_588, DAY), "national_illness": Series(7, 966, 7 * DAY),
}
"""Name of a file or of a subset -> what it holds."""


def make_series(place: Path, path: str) -> Note:
    """Write one as a CSV file."""
    series = SERIES[Path(path).stem]
    zeros = ",0.0" * series.variables
    lines = (date + zeros for date in series.dates)
    place.write_text("\n".join((",".join(("date", *series.columns)), *lines)) + "\n", encoding="utf-8")
    return told_series(path)


def told_series(path: str) -> Note:
    """What is said of it."""
    series = SERIES[Path(path).stem]
    return Note(NO_SERIES, path, series.rows, series.variables)


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
SCORES: Final = ("score", "scores", "similarity", "similarity_score")
LABELS: Final = ("coarse_label", "fine_label", "label", "labels")
IMAGES: Final = ("conditioning_image", "edited_image", "image", "images", "img", "input_image", "original_image")
TRAINERS: Final[Mapping[str, tuple[str, ...]]] = {
    "SFT": ("messages",), "GKD": ("messages",), "Distillation": ("messages",),
    "DPO": ("chosen", "rejected"), "CPO": ("chosen", "rejected"), "ORPO": ("chosen", "rejected"),
    "Reward": ("chosen", "rejected"), "KTO": ("prompts", "completions", "desirable"),
    "BCO": ("prompts", "completions", "desirable"), "GRPO": ("prompts", "solution"), "RLOO": ("prompts", "solution"),
    "OnlineDPO": ("prompts",), "XPO": ("prompts",), "NashMD": ("prompts",), "PRM": ("prompt", "steps", "verdicts"),
}
"""Trainer of TRL -> what a conversational data set of its kind has; the first whose class a script names."""
NAMED: Final = {
    "prompts": "prompt", "completions": "completion", "desirable": "label",
    "steps": "completions", "verdicts": "labels",
}
TRAINER: Final = re.compile(rf"\b({'|'.join(TRAINERS)})Trainer\b")
QUOTED: Final = re.compile(r"""["'](\w+)["']""")
OF_SENTENCES: Final = re.compile(r"\b(?:SentenceTransformer|CrossEncoder|SparseEncoder|MultiVectorEncoder)Trainer\b")
"""Trainers of sentence-transformers, to which every column is a text of its own, or a label by its name."""
ADDED: Final = re.compile(r"add_column\(\s*(?:name=)?[\"'](\w+)")
OWN_TEXT: Final = ("dataset_text_field", "formatting_func")
SPLITS: Final = ("train", "validation", "test")
SUBSCRIPT: Final = re.compile(
    r"\b(?:\w*dataset|batch|data_point|elements?|entry|entries|examples?|items?|records?|rows?|samples?|x)\[[\"'](\w+)[\"']\]"
)
"""How scripts name a column of a row or a batch of rows."""
REMOVED: Final = re.compile(r"remove_columns(?:=|\()\[([^\]]*)\]")
RENAMED: Final = re.compile(r"rename_column\([\"'](\w+)[\"'],\s*[\"'](\w+)")
MADE: Final = re.compile(
    r"\[[\"'](\w+)[\"']\]\s*=(?!=)|[\"'](\w+)[\"']\s*:\s*\w+\.(?:cpu|detach|numpy|tolist)\("
)
"""How scripts add a column: by assignment, or out of a tensor as `Dataset.map` takes it."""
OF_BATCHES: Final = (
    "attention_mask", "decoder_input_ids", "input_ids", "input_values", "labels", "length", "pixel_values",
    "text_target", "token_type_ids",
)
"""What tokenizers and processors make, which is no column of the data."""
OF_TRAINERS: Final = frozenset((*chain(*TRAINERS.values()), *NAMED.values(), *OF_BATCHES, *SPLITS)) - {"messages"}
DESCRIPTION: Final = "rows that stand in"
SUBSETS: Final[Mapping[str, tuple[tuple[tuple[str, ...], ...], tuple[str, ...]]]] = {
    "pair": ((("anchor", "positive"), ("query", "answer")), ()),
    "pair-class": ((("premise", "hypothesis"), ("sentence1", "sentence2")), ("label",)),
    "pair-score": ((("sentence1", "sentence2"),), ("score",)),
    "triplet": ((("anchor", "positive", "negative"), ("query", "positive", "negative")), ()),
    "triplets": ((("query_id", "positive_id", "negative_id"),), ()),
    "corpus": ((("_id", "text"), ("passage_id", "passage")), ()),
    "queries": ((("_id", "text"), ("query_id", "query")), ()),
    "qrels": ((("query-id", "corpus-id"),), ("score",)), "bm25": ((("query-id", "corpus-ids"),), ()),
}
"""Subset that a script asks for by the name that the data sets of sentence-transformers have in common [its
docs/sentence_transformer/dataset_overview.md; of searches: sentence_transformer/evaluation/nano_beir.py] -> the names
that its texts may have, the usual ones first; its label."""
KEYS: Final = ("_id", "corpus-id", "query-id", "passage_id", "query_id", "positive_id", "negative_id")
"""Names of texts: those of the same number in two subsets are the same."""
NO_METRIC: Final = "{}: the hub does not answer; a metric whose every value is zero stands in"


def _of_few(
    few: Callable[..., dict[str, Any]], _simulation: Simulation, act: Any, /, rows: Any, *args: Any,
    **kwargs: Any,
) -> Any:
    """A method of a data set that asks rows that stand in, and what a script makes of them, for no more than are there.

    What they are made into is a plain data set again, of which only the description is theirs.
    """
    if rows.info.description != DESCRIPTION:
        return act(rows, *args, **kwargs)
    given = signature(act).bind(rows, *args, **kwargs).arguments
    del given["self"]
    return act(rows, **given | few(len(rows), given))


def rows_of_hub(simulation: Simulation, load: Any, /, path: str, *args: Any, **kwargs: Any) -> Any:
    """`datasets.load_dataset`."""
    packaged: Any = import_module("datasets.packaged_modules")._PACKAGED_DATASETS_MODULES
    if (path not in packaged and Path(path).exists()) or (path in packaged and not _lacks(kwargs.get("data_files"))):
        return load(path, *args, **kwargs)
    if not answers():
        import_module("datasets.config").HF_HUB_OFFLINE = True  # type: ignore[attr-defined]
    try:
        return load(path, *args, **kwargs)
    except Exception:
        pass  # neither there nor in the cache
    split = kwargs.get("split", args[4] if len(args) > 4 else None)
    subset = str(kwargs.get("name", args[0] if args else ""))
    return _stand_in(path, subset, split, simulation, is_streamed=bool(kwargs.get("streaming")))


def _lacks(files: Any) -> bool:
    """Whether a name among `data_files` is that of a local file that is not there, or of a hub that does not answer."""
    if isinstance(files, Mapping):
        return _lacks([*files.values()])
    if isinstance(files, (list, tuple)):
        return any(map(_lacks, files))
    if str(files).startswith("hf://"):
        return not answers()
    is_name = isinstance(files, (str, Path)) and not re.search(r"://|[*?\[]", str(files))
    return is_name and not Path(files).exists()


class ZeroMetric:
    """A metric of the hub that cannot be fetched: it takes what it is given, and says zero of it."""

    def add(self, *_args: Any, **_kwargs: Any) -> None:
        """Nothing is kept."""

    add_batch = add

    def compute(self, *_args: Any, **_kwargs: Any) -> dict[str, float]:
        return defaultdict(float, {"accuracy": 0.0, "f1": 0.0})


def metric_of_hub(simulation: Simulation, load: Any, /, path: str, *args: Any, **kwargs: Any) -> Any:
    """`evaluate.load`."""
    if not answers():
        import_module("evaluate.config").HF_EVALUATE_OFFLINE = True  # type: ignore[attr-defined]
    try:
        return load(path, *args, **kwargs)
    except (OSError, ImportError):
        if Path(path).exists():
            raise
    simulation.assumptions.note(Note(NO_METRIC, path), simulation.origins.place())
    return ZeroMetric()


def _stand_in(path: str, subset: str, split: Any, simulation: Simulation, *, is_streamed: bool) -> Any:
    library: Any = import_module("datasets")
    if subset in SERIES:
        simulation.assumptions.note(told_series(subset), simulation.origins.place())
        series = SERIES[subset]
        named = {"date": series.dates, **{name: [0.0] * series.rows for name in series.columns}}
        return _of_splits(library, library.Dataset.from_dict(named), split, is_streamed)
    simulation.stood_in.append(path)
    columns = _columns(subset)
    count = simulation.data.get("rows", ROWS)
    tokens = simulation.data.get("seq", SEQUENCE)
    simulation.assumptions.note(
        Note(STANDS_IN, path, count, ", ".join(NAMED.get(name, name) for name in columns), tokens),
        simulation.origins.place(),
    )
    has_images = any(name in IMAGES for name in columns)
    made = {NAMED.get(name, name): _column(library, name, count, simulation, has_images) for name in columns}
    features = library.Features({name: feature for name, (_, feature) in made.items() if feature is not None})
    rows = library.Dataset.from_dict({name: values for name, (values, _) in made.items()})
    for name, feature in features.items():
        rows = rows.cast_column(name, feature)
    rows.info.description = DESCRIPTION
    return _of_splits(library, rows, split, is_streamed)


def stood_in() -> list[str]:
    """Data sets of the hub whose rows stand in, of the simulation that runs."""
    simulation = running()
    return [] if simulation is None else simulation.stood_in


def _of_splits(library: Any, rows: Any, split: Any, is_streamed: bool) -> Any:
    """The same rows for each."""
    rows = rows.to_iterable_dataset() if is_streamed else rows
    if split is None:
        kind: Any = library.IterableDatasetDict if is_streamed else library.DatasetDict
        return type("Splits", (kind,), {"__missing__": lambda _self, _name: rows})(dict.fromkeys(SPLITS, rows))
    return [rows for _ in split] if isinstance(split, (list, tuple)) else rows


def _few_indices(count: int, given: Mapping[str, Any]) -> dict[str, Any]:
    """Those rows that there are, of others as many: which ones does not matter. A rest that is empty is all of them."""
    indices = [*given["indices"]]
    chosen = [number for number in indices if number < count] or [number % count for number in indices]
    is_rest = isinstance(given["indices"], range) and given["indices"].start >= count
    return {"indices": chosen or (range(count) if is_rest else chosen)}


def _few_skipped(count: int, given: Mapping[str, Any]) -> dict[str, Any]:
    """None of them where as many or more are to be left out."""
    return {"n": given["n"] if given["n"] < count else 0}


def _few_parts(count: int, given: Mapping[str, Any]) -> dict[str, Any]:
    """Half of them at most for a part that is counted in rows."""
    sizes = {name: given[name] for name in ("test_size", "train_size") if given.get(name)}
    return {name: min(size, count // 2) for name, size in sizes.items() if size >= 1}


OF_FEW: Final[Mapping[str, Answer]] = {
    "Dataset.select": partial(_of_few, _few_indices), "Dataset.skip": partial(_of_few, _few_skipped),
    "Dataset.train_test_split": partial(_of_few, _few_parts),
}


def _columns(subset: str) -> tuple[str, ...]:
    """What the script, the files that lead to the call and the command line speak of."""
    library = str(Path(import_module("datasets").__file__ or "").parent)
    frame, files = sys._getframe(1), sorted(map(str, own_files("")))
    while frame.f_back is not None:
        name = frame.f_code.co_filename
        if name not in files and not name.startswith((library, "<", str(Path(__file__).parents[2]))):
            files.append(name)
        frame = frame.f_back
    text = "\n".join("".join(linecache.getlines(name)) for name in files)
    return columns_in(text, {part for word in sys.argv for part in word.split("=")}, subset)


def columns_in(text: str, asked: Set[str], subset: str = "") -> tuple[str, ...]:
    """Columns of a data set that code reads, or that words of a command line name."""
    removed = [name for names in REMOVED.findall(text) for name in QUOTED.findall(names)]
    trainer = TRAINER.search(text)
    if trainer is not None and not any(word in text for word in OWN_TEXT):
        with_images = ("images",) if re.search(r"[\"'.]images?\b", text) and trainer[1] == "SFT" else ()
        fields = (name for name in (*LONG, *BRIEF) if name in asked)
        read = (name for name in (*removed, *SUBSCRIPT.findall(text)) if name not in OF_TRAINERS)
        return *dict.fromkeys((*TRAINERS[trainer[1]], *fields, *read)), *with_images
    words = {*QUOTED.findall(text), *asked}
    if OF_SENTENCES.search(text):
        texts, label = SUBSETS.get(subset, SUBSETS["pair"])
        renamed = dict(RENAMED.findall(text))
        made = (*ADDED.findall(text), *OF_BATCHES, *SPLITS, *renamed.values())
        named = (*SUBSCRIPT.findall(text), *renamed, *removed)
        taken = tuple(name for name in dict.fromkeys(named) if name not in made)
        if subset not in SUBSETS and len(taken) > 1:
            return taken
        return *next((names for names in texts if words.issuperset(names)), texts[0]), *label
    known = (*CONVERSATIONS, *LONG, *BRIEF, *LABELS, *IMAGES, "answers", "idx", "id", "translation")
    added = {name for names in MADE.findall(text) for name in names}
    others = tuple(name for name in dict.fromkeys((*SUBSCRIPT.findall(text), *removed)) if name not in added)
    found = tuple(name for name in known if name in words)
    found += tuple(name for name in others if name not in (*known, *OF_BATCHES, *SPLITS))
    if removed:  # as a tokenised data set keeps no text: one that is not removed is none of its columns
        kept = {*SUBSCRIPT.findall(text), *removed, *asked}
        found = tuple(name for name in found if name in kept or name not in (*LONG, *BRIEF))
    if "label" in found:  # which a script renames, as models take it by its other name
        found = tuple(name for name in found if name != "labels")
    has_content = any(name in (*LONG, *BRIEF, *CONVERSATIONS, *IMAGES, *others) for name in found)
    return found if has_content else (*found, "text")


def _column(library: Any, name: str, count: int, simulation: Simulation, has_images: bool) -> tuple[list[Any], Any]:
    """Values of a column, and how they are kept where that is not plain."""
    tokens = simulation.data.get("seq", SEQUENCE)
    long, brief = text_of(tokens), text_of(tokens // SHORT)
    if name in IMAGES:
        side = simulation.data.get("image", IMAGE)
        image = {"bytes": picture(side, side), "path": None}
        kind = library.Image()
        return ([[image]] * count, library.List(kind)) if name == "images" else ([image] * count, kind)
    if name in LABELS:
        classes = [str(number) for number in range(100 if has_images else 2)]
        return [number % len(classes) for number in range(count)], library.ClassLabel(names=classes)
    asked = {"role": "user", "content": brief}
    said = {"role": "assistant", "content": text_of(tokens - tokens // SHORT)}
    values: dict[str, Any] = {
        "messages": [asked, said], "conversations": [asked, said], "chosen": [asked, said], "rejected": [asked, said],
        "prompts": [asked], "completions": [said], "translation": dict.fromkeys(("de", "en", "fr", "ro"), brief),
        "steps": [brief] * SHORT, "verdicts": [True] * SHORT, "answers": {"text": ["quick"], "answer_start": [4]},
    }
    if name in values:
        return [values[name]] * count, None
    if name == "desirable":
        return [number % 2 == 0 for number in range(count)], None
    if name in SCORES:
        return [number / count for number in range(count)], None
    if name in KEYS:
        return [str(number) for number in range(count)], None
    if name == "corpus-ids":  # those found for a query
        return [list(map(str, range(count)))] * count, None
    if name in ("idx", "id"):
        return list(range(count)), None
    rest = (brief if name in BRIEF else long)[CHARACTERS:]
    # Each is another, of the same length: samplers leave rows out that a batch has already.
    return [f"{number:0{CHARACTERS}d}"[-CHARACTERS:] + rest for number in range(count)], None


def text_of(tokens: int) -> str:
    characters = max(1, tokens) * CHARACTERS
    return (SENTENCE * (characters // len(SENTENCE) + 1))[:characters]


def picture(width: int, height: int) -> bytes:
    """A black one."""
    written = io.BytesIO()
    image: Any = import_module("PIL.Image")
    image.new("RGB", (width, height)).save(written, "PNG")
    return written.getvalue()
