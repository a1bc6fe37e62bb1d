"""The answer as a Python object that shows itself: text at a prompt, a table in a notebook, JSON on request."""

from __future__ import annotations

from html import escape

from msgspec.structs import asdict

from vramcast.domain.answer import Answer, ServeAnswer
from vramcast.domain.failure import Diagnosis
from vramcast.domain.planning import PlanAnswer
from vramcast.report import failure, plan, plan_document
from vramcast.report.document import to_json
from vramcast.report.messages import Words
from vramcast.report.picture import svg
from vramcast.report.text import render, verdict
from vramcast.units import format_bytes

SHOWN_ENTRIES = 20


class ShownAnswer(Answer, frozen=True):
    """An answer with its representations."""

    def __str__(self) -> str:
        return render(self, Words("en"))

    def to_json(self) -> str:
        """The document `vramcast train --json` prints."""
        return to_json(self)

    def _repr_html_(self) -> str:
        words = Words("en")
        lines = "".join(f"<div>{escape(line)}</div>" for line in verdict(self, words))
        entries = sorted(self.fullest.ledger, key=lambda entry: -entry.num_bytes)[:SHOWN_ENTRIES]
        largest = max(1, entries[0].num_bytes)
        rows = "".join(
            f"<tr><td style='text-align:left'>{escape(entry.path)}</td><td>{format_bytes(entry.num_bytes)}</td>"
            f"<td style='text-align:left'><div style='background:#4c78a8;height:0.8em;"
            f"width:{max(1, round(160 * entry.num_bytes / largest))}px'></div></td>"
            f"<td style='text-align:left' title='{escape(entry.source, quote=True)}'>{escape(entry.formula)}</td></tr>"
            for entry in entries
        )
        return f"<div><b>{lines}</b><table><tbody>{rows}</tbody></table></div>"


class ShownPlanAnswer(PlanAnswer, frozen=True):
    """The answer of a search with its representations."""

    def __str__(self) -> str:
        return plan.render(self, Words("en"))

    def to_json(self) -> str:
        """The document `vramcast plan train --json` prints."""
        return plan_document.to_json(self)

    def _repr_html_(self) -> str:
        words = Words("en")
        shared, own = plan.split_labels(self.labels) if self.labels else ("", [])
        rows = "".join(
            f"<tr><td>{rank}</td><td style='text-align:left'>{escape(text)}</td>"
            f"<td style='text-align:left'>{escape(', '.join(plan.summary(found, words)))}</td></tr>"
            for rank, (text, found) in enumerate(zip(own, self.plans, strict=True), 1)
        )
        drawn = svg(self.front, words) if len(self.front) > 1 else ""
        head = words("plan.table") if self.plans else words("plan.nothing_fits", count=self.num_plans)
        return f"<div><b>{escape(head)}</b> {escape(shared)}<table><tbody>{rows}</tbody></table>{drawn}</div>"


class ShownDiagnosis(Diagnosis, frozen=True):
    """A diagnosis with its representations."""

    def __str__(self) -> str:
        return failure.render(self, Words("en"))

    def to_json(self) -> str:
        """The document `vramcast oom --json` prints."""
        return failure.to_json(self)

    def _repr_html_(self) -> str:
        words = Words("en")
        parts = []
        for finding, *others in failure.grouped(self.findings):
            why = "".join(f"<li>{escape(failure.sentence(remark, words))}</li>" for remark in finding.why)
            fixes = "".join(
                f"<li>{escape(failure.sentence(fix.action, words))}<br><code>{escape(fix.setting)}</code></li>"
                for fix in finding.fixes
            )
            parts.append(f"<div><b>{escape(failure.headline(finding, words))}</b><ul>{why}</ul><ol>{fixes}</ol></div>")
            if others:
                parts.append(f"<div>{escape(words('failure.others', count=1 + len(others)))}</div>")
        checks = "".join(f"<li>{escape(failure.sentence(check, words))}</li>" for check in self.checks)
        return "".join(parts) + (f"<ul>{checks}</ul>" if checks else "")


class ShownServeAnswer(ServeAnswer, ShownAnswer, frozen=True):
    """An answer to a serving question with its representations."""


def shown_serving(answer: ServeAnswer) -> ShownServeAnswer:
    """The same answer, able to show itself."""
    return ShownServeAnswer(**asdict(answer))


def shown(answer: Answer) -> ShownAnswer:
    """The same answer, able to show itself."""
    return ShownAnswer(**asdict(answer))


def shown_diagnosis(found: Diagnosis) -> ShownDiagnosis:
    """The same diagnosis, able to show itself."""
    return ShownDiagnosis(**asdict(found))


def shown_plan(answer: PlanAnswer) -> ShownPlanAnswer:
    """The same answer, able to show itself."""
    return ShownPlanAnswer(**asdict(answer))
