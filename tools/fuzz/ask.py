"""Questions asked in this process, and what must hold of every answer, whatever was asked.

A question may be refused with one sentence; anything else that is raised is a fault. An answer's ledgers add up, its
levels and intervals are in order, it can be written in every form, and each number of a change, of a plan or of what a
search tried is what the same question, asked directly, comes to.
"""

from __future__ import annotations

import json
import shlex
import time
import traceback
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from functools import partial
from itertools import product
from math import isclose, isfinite
from random import Random
from typing import Any, Final, TypeVar

from tools.fuzz.draw import TABLES, Question, question, without
from vramcast.api import job_of, planned_serving, planned_training, serve_answer, serve_job_of
from vramcast.blocks.parameters.model import count_parameters
from vramcast.catalogue.models import load_model
from vramcast.domain.answer import Answer, RankAnswer, ServeAnswer
from vramcast.domain.job import AttentionKernel, Job, require_count
from vramcast.domain.model import Checkpoint
from vramcast.domain.planning import PlanAnswer
from vramcast.domain.serving import PipelineJob, ServeJob
from vramcast.errors import VramcastError
from vramcast.estimate.layers import layer_rows
from vramcast.estimate.training import answer as train_answer
from vramcast.estimate.training import recorded
from vramcast.formats.registry import EMITTERS
from vramcast.formats.write import files_of
from vramcast.question.options import OPTIONS, applied_in, options_in
from vramcast.question.tables import SERVE_OPTIONS
from vramcast.report import document, plan, text
from vramcast.report.messages import LANGUAGES, Words
from vramcast.report.written.made import FORMATS, report_of

TRIES: Final = 9
"""A question that is refused is asked again with an option less, so often in all."""

LONGEST_SENTENCE: Final = 2000
"""Of a refusal [characters]."""

FoundT = TypeVar("FoundT")
Options = Mapping[str, Any]
Asking = Callable[[Options], Answer]


def resolve(name: str) -> Checkpoint:
    """A model of the catalogue: the network is never asked."""
    return Checkpoint(model=load_model(name))


def train(options: Options, *, with_changes: bool = False) -> Answer:
    """The answer of `vramcast train`, where asked with what it proposes to change."""
    return train_answer(job_of(options, resolve=resolve), with_changes=with_changes)


def serve(options: Options, *, with_changes: bool = False) -> ServeAnswer:
    """The answer of `vramcast serve`, likewise."""
    return serve_answer(options, resolve=resolve, with_changes=with_changes)


class Examination:
    """One question, and what was wrong with its answer."""

    def __init__(self, question: Question, *, every_form: bool = False) -> None:
        """Ask it.

        Args:
            question: what to ask
            every_form: whether the answer is written as text, too, in every language
        """
        self.question = question
        self.faults: list[str] = []
        self.refusal: VramcastError | None = None
        self.num_answers = 0  # with those behind changes and plans
        self.seconds = 0.0  # of the question itself
        self._every_form = every_form
        try:
            _EXAMINED[question.command](self, question.options)
        except VramcastError as error:
            self.refusal = error
            sentence = str(error)
            if not sentence or "\n" in sentence or len(sentence) > LONGEST_SENTENCE:
                self._fault(f"refused in no sentence: {sentence[:200]!r}")
        except Exception:
            self._fault(traceback.format_exc(limit=-6))

    def train(self, options: Options) -> None:
        answer = self._timed(train, options, with_changes=True)
        self._answer(answer)
        self._changes(options, answer, train)
        if self._every_form:
            job = job_of(options, resolve=resolve)
            self._files(job, answer)
            self._refused_or(lambda: recorded(job))

    def serve(self, options: Options) -> None:
        answer = self._timed(serve, options, with_changes=True)
        self._answer(answer)
        if answer.found is None:
            self._changes(options, answer, serve)
            if self._every_form:
                self._files(serve_job_of(options, resolve=resolve), answer)
        else:
            self._tried(options, answer, serve)

    def plan_train(self, options: Options) -> None:
        planned = self._timed(planned_training, options, resolve=resolve).answer
        if isinstance(planned, Answer):
            self._answer(planned)
            self._tried(options, planned, train)
            if planned.found is not None and planned.found.command:
                self._same(planned.found.command, planned, train)
            return
        self._plans(planned, train)

    def plan_serve(self, options: Options) -> None:
        planned, _ = self._timed(planned_serving, options, resolve=resolve)
        self._plans(planned, serve)

    def layers(self, options: Options) -> None:
        model = load_model(options["model"])
        rows = self._timed(
            layer_rows, model, batch=require_count("batch", options.get("batch", 1)),
            seq_len=require_count("seq-len", options.get("seq-len", 1024)),
            dtype_bytes=int(options.get("dtype-bytes", 2)),
            attention=AttentionKernel(options.get("attention", "flash")),
        )
        for row in rows:
            self._hold(min(row.parameters, row.saved_bytes, row.flops, *row.output_shape, 1) >= 0, f"{row} is negative")
        if len(model.stacks) == 1:
            counted, total = sum(row.parameters * row.repeats for row in rows), count_parameters(model).total
            self._hold(counted == total, f"layers hold {counted:,} of {total:,} parameters")

    def _timed(self, asked: Callable[..., FoundT], *given: Any, **named: Any) -> FoundT:
        """The answer to the question itself."""
        start = time.process_time()
        try:
            return asked(*given, **named)
        finally:
            self.seconds = time.process_time() - start
            self.num_answers += 1

    def _changes(self, options: Options, answer: Answer, asking: Asking) -> None:
        """Every change, asked for."""
        table = SERVE_OPTIONS if isinstance(answer, ServeAnswer) else OPTIONS
        for change in answer.changes:
            applied = applied_in(change.change, table)
            if applied is None:
                self._fault(f"change {change.change!r} cannot be read as options")
                continue
            try:
                after = asking({**options, **applied})
            except VramcastError as error:
                self._fault(f"change {change.change!r} is refused: {error}")
                continue
            self.num_answers += 1
            found, said = (after.fullest.needed_bytes, after.fits), (change.device_bytes, change.fits)
            self._hold(found == said, f"change {change.change!r} says {said}, asked directly {found}")
            high = after.fullest.high_bytes
            self._hold(high == change.high_bytes, f"change {change.change!r} says <= {change.high_bytes}, not {high}")
            if change.slowdown is not None and answer.time is not None and after.time is not None:
                slowdown = answer.time.tokens_per_s / after.time.tokens_per_s - 1
                self._hold(
                    isclose(slowdown, change.slowdown, rel_tol=1e-6, abs_tol=1e-9),
                    f"change {change.change!r} says {change.slowdown} slower, asked directly {slowdown}",
                )

    def _tried(self, options: Options, answer: Answer, asking: Asking) -> None:
        """Every plan that an inverse question shows, asked for."""
        found = answer.found
        assert found is not None
        table = SERVE_OPTIONS if isinstance(answer, ServeAnswer) else OPTIONS
        known = {name: value for name, value in options.items() if name in table or name == "model"}
        known.pop("find", None)
        for tried in found.tried[:4]:
            applied = options_in(tried.what, table)
            if applied is None or tried.needed_bytes is None or tried.model or tried.parameters:
                continue
            try:
                after = asking({**known, **applied})
            except VramcastError:
                continue  # the search fills in what a question would have to say
            self.num_answers += 1
            needed = after.fullest.needed_bytes
            self._hold(needed == tried.needed_bytes, f"tried {tried.what!r}: {tried.needed_bytes}, asked {needed}")

    def _plans(self, planned: PlanAnswer, asking: Asking) -> None:
        """A search's plans; the best by its command."""
        for one in (*planned.plans, *([planned.nearest_failing] if planned.nearest_failing else [])):
            self._answer(one)
        json.loads(document.plan_json(planned))
        if self._every_form:
            self._reports(planned)
            for language in LANGUAGES:
                plan.render(planned, Words(language), explain=True)
        if planned.plans and planned.command:
            self._same(planned.command, planned.plans[0], asking)

    def _same(self, command: str, answer: Answer, asking: Asking) -> None:
        """A command asks for the plan that it stands beside."""
        words = shlex.split(command)[2:]
        model = {} if words[0].startswith("--") else {"model": words.pop(0)}
        lists: dict[str, Any] = {}
        while "--engine-option" in words:
            place = words.index("--engine-option")
            lists.setdefault("engine-option", []).append(words[place + 1])
            del words[place : place + 2]
        applied = options_in(shlex.join(words), SERVE_OPTIONS if asking is serve else OPTIONS)
        if applied is None:
            self._fault(f"command {command!r} cannot be read as options")
            return
        try:
            after = asking({**model, **applied, **lists})
        except VramcastError as error:
            self._fault(f"command {command!r} is refused: {error}")
            return
        self.num_answers += 1
        said, found = answer.fullest.needed_bytes, after.fullest.needed_bytes
        self._hold(said == found, f"command {command!r}: {said} found, asked directly {found}")

    def _answer(self, answer: Answer) -> None:
        """What holds of every answer."""
        for rank in answer.ranks:
            self._rank(rank)
        needs = [rank.needed_bytes for rank in answer.ranks]
        self._hold(needs == sorted(needs, reverse=True), f"ranks are not in order: {needs}")
        too_large = answer.fullest.needed_bytes > answer.capacity_bytes
        self._hold(not (answer.fits and too_large), "it fits although it needs more than there is")
        self._hold(answer.num_parameters > 0, f"{answer.num_parameters} parameters")
        if answer.time is not None:
            times = (answer.time.step_s, answer.time.tokens_per_s, *answer.time.seconds.values())
            self._hold(all(map(isfinite, times)) and min(times) >= 0 < answer.time.step_s, f"times {times}")
        if isinstance(answer, ServeAnswer) and answer.capacity is not None:
            amounts = (answer.capacity.kv_bytes, answer.capacity.concurrency, answer.capacity.longest_context)
            self._hold(min(amounts) >= 0 and isfinite(answer.capacity.concurrency), f"capacity {amounts}")
        json.loads(document.to_json(answer))
        if self._every_form:
            self._reports(answer)
            for language in LANGUAGES:
                text.render(answer, Words(language), all_ranks=True, explain=True)

    def _reports(self, answer: Answer | PlanAnswer) -> None:
        command = self.question.command if isinstance(answer, PlanAnswer) else self.question.command.split()[-1]
        for form, language in product(FORMATS, LANGUAGES):
            self._hold(bool(report_of(command, answer, form, language)), f"no {form} report in {language}")

    def _files(self, job: Job | ServeJob | PipelineJob, answer: Answer) -> None:
        """What --write writes, in every format."""
        for name in EMITTERS:
            self._refused_or(partial(files_of, job, (name,), answer=answer))

    def _refused_or(self, act: Callable[[], object]) -> None:
        with suppress(VramcastError):
            act()

    def _rank(self, rank: RankAnswer) -> None:
        total = sum(entry.num_bytes for entry in rank.ledger)
        self._hold(total == rank.peak.device_bytes, f"{rank.role}: ledger {total}, device {rank.peak.device_bytes}")
        for entry in rank.ledger:
            if entry.num_bytes < 0 or entry.count < 0:
                self._fault(f"{rank.role}: {entry.path} takes {entry.num_bytes} bytes, {entry.count} times")
        for name, peak in rank.phases.items():
            levels = (0, peak.allocated_bytes, peak.reserved_bytes, peak.device_bytes)
            self._hold(list(levels) == sorted(levels), f"{rank.role}, {name}: levels {levels}")
        low, high = rank.interval_bytes
        self._hold(0 <= low <= rank.peak.device_bytes <= high, f"{rank.role}: interval {low} {rank.peak} {high}")
        self._hold(rank.count > 0, f"{rank.role}: {rank.count} ranks")

    def _hold(self, is_so: bool, otherwise: str) -> None:
        if not is_so:
            self._fault(otherwise)

    def _fault(self, what: str) -> None:
        self.faults.append(what)


def examined(random: Random, command: str | None = None, *, every_form: bool = False) -> Iterator[Examination]:
    """A question, and while it is refused the same with an option less."""
    drawn: Question | None = question(random, command)
    for _ in range(TRIES):
        if drawn is None:
            return
        found = Examination(drawn, every_form=every_form)
        yield found
        drawn = without(random, drawn, str(found.refusal)) if found.refusal is not None else None


_EXAMINED: Final[dict[str, Callable[[Examination, Options], None]]] = {
    "train": Examination.train, "serve": Examination.serve, "plan train": Examination.plan_train,
    "plan serve": Examination.plan_serve, "layers": Examination.layers,
}
assert set(_EXAMINED) == set(TABLES)
