"""Techniques, decisions and fleets in the language of a report."""

from __future__ import annotations

from vramcast.domain.answer import Fleet
from vramcast.domain.planning import Decision, Technique
from vramcast.report.messages import Words
from vramcast.report.plan_messages import ACTIONS_ZH, DECISIONS_ZH, TECHNIQUES_ZH
from vramcast.units import format_bytes


def technique_words(technique: Technique, words: Words) -> tuple[str, str, str]:
    """Name, when to use it, what it needs."""
    own = technique.name, technique.when, technique.needs
    return own if words.language == "en" else TECHNIQUES_ZH.get(technique.name, own)


def decision_words(decision: Decision, words: Words) -> tuple[str, str, str]:
    """Question, finding, action."""
    if words.language == "en":
        return decision.question, decision.finding, decision.action
    needed, capacity = format_bytes(decision.device_bytes or 0), format_bytes(decision.capacity_bytes or 0)
    kind = decision.name if decision.name in ("size", "more") else "fits"
    finding = words(f"decision.{kind}_{'yes' if decision.yes else 'no'}", needed=needed, capacity=capacity)
    if kind == "more":
        finding = f"{decision.finding.partition(': ')[0]}{finding}"
    if decision.host_bytes is not None:
        finding += words("decision.host", host=format_bytes(decision.host_bytes))
    question = DECISIONS_ZH.get(decision.name, decision.question)
    return question, finding, ACTIONS_ZH.get(decision.action, decision.action)


def fleet_words(fleet: Fleet, words: Words) -> str:
    """How many replicas there are, and on what: "(2 replicas on 1 x aws:g7e.12xlarge)"."""
    key = "plan.fleet" if fleet.replicas > 1 else "plan.fleet_of_one"
    return words(key, replicas=fleet.replicas, machines=fleet.machines, machine=fleet.machine)
