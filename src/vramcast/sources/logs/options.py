"""From engines' arguments to options of `vramcast serve`."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final

from vramcast.sources.logs.wording import Startup, wording

Target = tuple[str, Callable[[Any], Any]]
"""Name of an option, and how an argument's value is read."""

DTYPES: Final = {
    "bfloat16": "bf16", "bf16": "bf16", "float16": "fp16", "half": "fp16", "fp16": "fp16", "float32": "fp32",
    "float": "fp32", "fp32": "fp32",
}
CACHE_DTYPES: Final = DTYPES | {
    "fp8": "fp8", "fp8_e4m3": "fp8", "fp8_e5m2": "fp8", "fp8_inc": "fp8", "fp8_ds_mla": "fp8", "float8_e4m3fn": "fp8",
    "float8_e5m2": "fp8", "int8": "int8", "f16": "fp16", "f32": "fp32", "q8_0": "q8_0", "q5_1": "q5_1", "q5_0": "q5_0",
    "q4_1": "q4_1", "q4_0": "q4_0", "iq4_nl": "iq4_nl",
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
