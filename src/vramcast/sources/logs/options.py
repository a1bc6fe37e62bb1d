"""Arguments that servers print, as options of `vramcast serve`; and out-of-memory messages of start-ups."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Any, Final

from vramcast.domain.failure import Statement
from vramcast.sources.logs.wording import OutOfMemoryMessage, Startup, Wording, wording

MOST_ARGUMENTS: Final = 2_000
LONGEST_VALUE: Final = 4_096

OPENING: Final = "([{<"
CLOSING: Final = ")]}>"
QUOTES: Final = "'\""
KEY: Final = re.compile(r"\s*['\"]?([A-Za-z_][\w.-]{0,80})['\"]?\s*[=:]\s*")

VALUE: Final = r"'[^']{0,1000}'|\"[^\"]{0,1000}\"|[\w./:+-]{1,200}"

WORDS: Final[dict[str, Any]] = {"None": None, "null": None, "True": True, "False": False, "true": True, "false": False}


def split_arguments(text: str) -> dict[str, Any]:
    """The arguments of the outermost level; what brackets hold stays text.

    >>> split_arguments("model='a,b', tp=2, extra={'model': 'x'}, graphs=None) and more")
    {'model': 'a,b', 'tp': 2, 'extra': "{'model': 'x'}", 'graphs': None}
    """
    found: dict[str, Any] = {}
    for piece in _pieces(text):
        match = KEY.match(piece)
        if match is not None and len(found) < MOST_ARGUMENTS:
            found.setdefault(match[1], _value(piece[match.end() :].strip()[:LONGEST_VALUE]))
    return found


def _pieces(text: str) -> list[str]:
    """The text between commas of the outermost level, up to the bracket that ends it."""
    pieces: list[str] = []
    start = depth = 0
    quote = ""
    escaped = False
    for position, character in enumerate(text):
        if quote:
            if escaped or character == "\\":
                escaped = not escaped
            elif character == quote:
                quote = ""
        elif character in QUOTES:
            quote = character
        elif character in OPENING:
            depth += 1
        elif character in CLOSING:
            depth -= 1
            if depth < 0:
                return [*pieces, text[start:position]]
        elif character == "," and depth == 0:
            pieces.append(text[start:position])
            start = position + 1
    return [*pieces, text[start:]]


def _value(text: str) -> Any:
    if text in WORDS:
        return WORDS[text]
    if len(text) > 1 and text[0] in QUOTES and text.endswith(text[0]):
        return text[1:-1]
    if re.fullmatch(r"-?\d{1,18}", text):
        return int(text)
    if re.fullmatch(r"-?\d{1,18}(?:\.\d{1,18})?(?:e-?\d{1,2})?", text):
        return float(text)
    return text


def argument(text: str, key: str) -> Any:
    """One argument wherever it stands in a text whose arguments are apart by spaces; None where it does not.

    >>> argument("model='x' tensor_parallel_size=2 backend='pytorch'", "tensor_parallel_size")
    2
    """
    match = re.search(rf"(?<!\w){key}['\"]?\s{{0,3}}[=:]\s{{0,3}}({VALUE})", text)
    return None if match is None else _value(match[1])


MESSAGES: Final[tuple[Wording, ...]] = (
    wording("ut of memory", r"(?P<oom__t>.{0,3000})"),
    wording("buffer of size", r"(?P<oom_buffer__t>failed to allocate \w{1,40} buffer of size [0-9]{1,20})"),
)
"""Lines of every reader that may hold a message; what they say is read as any failure is."""

FIGURES: Final[dict[str, str]] = {
    "tried": "tried_bytes",
    "total": "total_bytes",
    "free": "free_bytes",
    "process": "process_bytes",
    "others": "other_processes_bytes",
    "allocated": "allocated_bytes",
    "unallocated": "unallocated_bytes",
    "pools": "private_pools_bytes",
}
"""Figure of a log's message -> figure of a statement."""


def out_of_memory(startup: Startup, *, stage: str) -> OutOfMemoryMessage | None:
    """The first message of a start-up: what follows it are echoes of the same failure."""
    lines = [*startup.values("oom"), *startup.values("oom_buffer")]
    if not lines:
        return None
    from vramcast.sources.failures.families import FAMILIES
    from vramcast.sources.failures.read import read_failures

    said = (item for line in lines for item in read_failures(line).statements)
    found = [item for item in said if FAMILIES[item.family].about == "device"]
    if not found:
        return None
    return _message(next((item for item in found if item.numbers), found[0]), stage)


def _message(statement: Statement, stage: str) -> OutOfMemoryMessage:
    numbers = statement.numbers
    sizes = {name: int(numbers[figure]) for name, figure in FIGURES.items() if figure in numbers}
    if "tried" not in sizes and "buffer_bytes" in numbers:
        sizes["tried"] = int(numbers["buffer_bytes"])
    if "unallocated" not in sizes and {"reserved_bytes", "allocated_bytes"} <= numbers.keys():
        sizes["unallocated"] = max(0, int(numbers["reserved_bytes"]) - int(numbers["allocated_bytes"]))
    return OutOfMemoryMessage(**sizes, stage=stage)


Target = tuple[str, Callable[[Any], Any]]
"""Name of an option, and how an argument's value is read."""

DTYPES: Final = {
    "bfloat16": "bf16", "bf16": "bf16", "float16": "fp16", "half": "fp16", "fp16": "fp16", "float32": "fp32",
    "float": "fp32", "fp32": "fp32",
}
CACHE_DTYPES: Final = DTYPES | dict.fromkeys((
    "fp8", "fp8_e4m3", "fp8_e4m3fn", "fp8_e5m2", "fp8_inc", "fp8_ds_mla", "float8_e4m3fn", "float8_e5m2",
), "fp8") | {
    "int8": "int8", "f16": "fp16", "f32": "fp32", "q8_0": "q8_0", "q5_1": "q5_1", "q5_0": "q5_0", "q4_1": "q4_1",
    "q4_0": "q4_0", "iq4_nl": "iq4_nl",
}

CARDS: Final = (
    wording("GPU ", r"^\W{0,8}GPU \d{1,3}: (?P<card__t>(?:NVIDIA|AMD|Tesla|GeForce)[^(\r\n]{2,60})"),
    wording("device_name=", r"device_name=(?P<card_file__t>[A-Za-z][\w-]{2,60})"),
)
"""Lines of any engine that name cards: listings of the environment, and files of tuned kernels."""


def dtype(value: Any) -> str | None:
    """A dtype of activations; None for "auto" and unknown ones."""
    return DTYPES.get(str(value).removeprefix("torch."))


def cache_dtype(value: Any) -> str | None:
    """A dtype of the cache; None for "auto" and unknown ones."""
    return CACHE_DTYPES.get(str(value).removeprefix("torch.").lower())


def negated(value: Any) -> bool | None:
    """The opposite of a flag; None where it was not set."""
    return False if value is True else None


def translated(arguments: Mapping[str, Any], table: Mapping[str, Target]) -> dict[str, Any]:
    """Options of the arguments that a table knows; what has no usable value is left out."""
    found: dict[str, Any] = {}
    for name, (option, read) in table.items():
        value = arguments.get(name)
        if value is None or (isinstance(value, str) and value in ("", "auto")):
            continue
        if read in (int, float) and not _is_number(value):
            continue
        if read is bool and not isinstance(value, bool):
            continue
        result = read(value)
        if result is not None and result != "":
            found[option] = result
    return found


def _is_number(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool) and 0 < value < 1e15


def cards(startup: Startup) -> tuple[str, ...]:
    """Names of cards that a log mentions."""
    listed = [str(name).strip() for name in startup.values("card")]
    files = [str(name).replace("_", " ") for name in startup.values("card_file")]
    return tuple(listed or dict.fromkeys(files))
