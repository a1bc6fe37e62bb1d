"""Logs as the engines word them, with numbers of our own."""

from pathlib import Path

from vramcast.sources.logs import parse
from vramcast.sources.logs.wording import COLOURS, LogLine, ServingLog
from vramcast.units import GIB

FOLDER = Path(__file__).with_name("data")
NAMES = sorted(path.stem for path in FOLDER.glob("*.log"))


def sample(name: str) -> str:
    return (FOLDER / f"{name}.log").read_text(encoding="utf-8")


def parsed(text: str, name: str = "x.log") -> ServingLog:
    lines = text.splitlines(keepends=True)
    return parse((LogLine(number, COLOURS.sub("", line)) for number, line in enumerate(lines, 1)), name=name)


def read(name: str) -> ServingLog:
    return parsed(sample(name), name)


def gib(value: float) -> int:
    return round(value * GIB)
