"""Where in a script's own source a change has to be made, from what a run of it showed.

A run says at which lines the optimizer was made, the network called and backward called, and what the network is called
there; the syntax tree says what stands at those lines. What is not found for certain is not changed.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Final, NamedTuple

from vramcast.domain.trace_job import ScriptJob
from vramcast.question.varied import argued, declared, named_numbers, plain_name, whole_number
from vramcast.tracing.script_parts import MadeOptimizer, ScriptParts, Site
from vramcast.tracing.tuning.edits import Edit, Source

ARGUMENTS: Final = re.compile(r"TrainingArguments$|^(SFT|DPO|KTO|ORPO|CPO|Reward|GRPO|RLOO)Config$")
"""Classes of transformers and TRL that hold what the Trainer is told."""
PARSERS: Final = ("HfArgumentParser", "TrlParser")
"""What reads them from the command line."""
TRAINERS: Final = ("transformers", "trl")
BARE: Final = re.compile(r"\.(\d+)(?=\.|$)")


class Part(NamedTuple):
    """A piece of a change: edits, options of the command line, contexts that forward and loss run within."""

    edits: tuple[Edit, ...] = ()
    options: tuple[tuple[str, str], ...] = ()
    contexts: tuple[str, ...] = ()

    def __add__(self, other: object) -> Part:
        assert isinstance(other, Part)
        return Part(self.edits + other.edits, self.options + other.options, self.contexts + other.contexts)


class Script:
    """A script, its own files, and what a run showed of it."""

    def __init__(self, job: ScriptJob, parts: ScriptParts) -> None:
        """Reads its files.

        Raises: InvalidSpec where one is no Python
        """
        self.job, self.parts = job, parts
        self.main = Source(job.path)
        self.sources: dict[str, Source] = {job.path: self.main}
        made = parts.optimizers[0] if parts.optimizers else None
        self.made = made
        for site in (site for one in parts.optimizers for site in one.sites):
            self.source(site.filename)
        self.arguments_call = self._arguments_call()
        self.is_trainer = self.runs_in(*TRAINERS)
        """Whether the Trainer makes the optimizer, and so the step."""

    def source(self, name: str) -> Source:
        if Path(name).resolve() == Path(self.job.path).resolve():
            return self.main
        if name not in self.sources:
            self.sources[name] = Source(name)
        return self.sources[name]

    def _arguments_call(self) -> ast.Call | None:
        calls = [node for node in ast.walk(self.main.tree)
                 if isinstance(node, ast.Call) and ARGUMENTS.search(called(node))]
        return calls[0] if len(calls) == 1 else None

    def runs_in(self, *libraries: str) -> bool:
        """Whether one of these makes the optimizer, or is between it and the script."""
        return self.made is not None and any(name in libraries for name in self.made.libraries)

    @property
    def parses_arguments(self) -> bool:
        """Whether the Trainer's arguments are options of the command line."""
        return any(name in self.main.names for name in PARSERS)

    def field(self, name: str, value: object) -> Part | None:
        """An argument of the Trainer, where the script says those: in a call, or on its command line."""
        if self.arguments_call is not None:
            return Part((self.main.argument(self.arguments_call, name, repr(value)),))
        return Part(options=((f"--{name}", str(value)),)) if self.parses_arguments else None

    def number(self, called_so: Sequence[str], value: int, new: int) -> Part | None:
        """The number of one of these names set, where it has that value: an option that was given, the default of one,
        a number in the source."""
        given = {plain_name(text.partition("=")[0]): text.partition("=")[0] for text in self.job.arguments
                 if text.startswith("--")}
        options = {plain_name(option): call for option, call in declared(self.main.tree)}
        numbers = list(named_numbers(self.main.tree))
        for name in called_so:
            if name in given:
                return Part(options=((given[name], str(new)),))
            if name in options:
                default = next((word.value for word in options[name].keywords if word.arg == "default"), None)
                if default is not None and whole_number(default) == value:
                    return Part((self.main.replaced(default, str(new)),))
            found = [node for known, node, number in numbers if plain_name(known) == name and number == value]
            if found:
                return Part(tuple(self.main.replaced(node, str(new)) for node in found))
        return None

    def call_of(self, name: str) -> ast.Call | None:
        """The one call of a function or class in the script."""
        calls = [node for node in ast.walk(self.main.tree) if isinstance(node, ast.Call) and called(node) == name]
        return calls[0] if len(calls) == 1 else None

    def optimizer_calls(self, plain: Sequence[MadeOptimizer]) -> list[tuple[Source, ast.Call]] | None:
        """The calls that make these optimizers, each once; None where one of them is not found."""
        found = [None if self.is_trainer else self._call_that_makes(one) for one in plain]
        calls = [one for one in found if one is not None]
        return list({id(call): (source, call) for source, call in calls}.values()) if len(calls) == len(found) else None

    def _call_that_makes(self, made: MadeOptimizer) -> tuple[Source, ast.Call] | None:
        if not made.sites:
            return None
        site = made.sites[0]
        source = self.source(site.filename)
        statement, name = source.statement(site.line), made.class_name.rpartition(".")[2]
        calls = [node for node in ast.walk(statement) if isinstance(node, ast.Call)] if statement else []
        found = [node for node in calls if called(node) == name]
        if len(found) != 1:
            found = [node for node in calls if any(word.arg == "lr" for word in node.keywords)]
        return (source, found[0]) if len(found) == 1 else None

    def network(self) -> tuple[Source, ast.stmt, str] | None:
        """The statement before which the network is whole, though no optimizer has its parameters yet, and its name
        there."""
        for site in self.made.sites if self.made else ():
            names = [name for name in site.networks if name != "self"]
            source = self.source(site.filename)
            statement = source.statement(site.line)
            if names and statement is not None and source.indentation(statement) is not None:
                return source, statement, min(names, key=lambda name: (name.count("."), len(name)))
        return None

    def before_optimizer(self, lines: Sequence[str], *, imports: Sequence[str] = ()) -> Part | None:
        """Lines put where the network is whole; NETWORK in them is its name, EACH one that the file does not have."""
        place = self.network()
        if place is None or not place[0].has_torch():
            return None
        source, statement, name = place
        each = next(word for word in ("block", "layer", "part", "each_block") if word not in source.names)
        written = [line.replace("NETWORK", name).replace("EACH", each) for line in lines]
        edits = [source.import_module(module) for module in imports]
        edits.append(source.before(statement, written))
        return Part(tuple(edit for edit in edits if edit is not None))

    def within(self, contexts: Sequence[str]) -> list[Edit] | None:
        """The statements from the forward to the one before backward, within contexts; None where they are not in one
        row."""
        found = self._forward_to_backward()
        if found is None or not found[0].has_torch():
            return None
        source, statements = found
        return source.indented(statements, f"with {', '.join(contexts)}:")

    def _forward_to_backward(self) -> tuple[Source, list[ast.stmt]] | None:
        for forward in self.parts.forward:
            for backward in self.parts.backward:
                if forward.filename == backward.filename:
                    source = self.source(forward.filename)
                    rows = [row for one in _rows(source.tree) if (row := _between(one, forward, backward))]
                    if rows:
                        return source, max(rows, key=lambda row: row[0].lineno)
        return None


def _rows(tree: ast.Module) -> Iterator[list[ast.stmt]]:
    """Every list of statements that run one after the other."""
    for node in ast.walk(tree):
        for name in ("body", "orelse", "finalbody"):
            row = getattr(node, name, None)
            if isinstance(row, list) and row and isinstance(row[0], ast.stmt):
                yield row


def _between(row: list[ast.stmt], forward: Site, backward: Site) -> list[ast.stmt]:
    begin, end = (
        next((index for index, one in enumerate(row) if one.lineno <= site.line <= (one.end_lineno or 0)), None)
        for site in (forward, backward)
    )
    return row[begin:end] if begin is not None and end is not None and begin < end else []


def called(node: ast.Call) -> str:
    """The last part of what is called: "AdamW" of torch.optim.AdamW(...)."""
    return node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")


def path_of(module: str) -> str:
    """A module's name as Python says it.

    >>> path_of("transformer.h"), path_of("features.3.layers")
    ('transformer.h', 'features[3].layers')
    """
    return BARE.sub(r"[\1]", module)


def arguments_with(arguments: tuple[str, ...], options: Sequence[tuple[str, str]]) -> tuple[str, ...]:
    """A command line with these options set."""
    for name, value in options:
        arguments = argued(arguments, name, value)
    return arguments
