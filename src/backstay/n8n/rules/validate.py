"""Look a workflow over: everything about graph, locks, code and settings that n8n itself does not check."""

from __future__ import annotations

from backstay.n8n.analysis.graph import Reading
from backstay.n8n.model import Workflow
from backstay.n8n.rules import code, graph, lock, scope, settings, under_lock
from backstay.n8n.rules.findings import Finding, Level, Rule, Surroundings

__all__ = ["RULES", "Finding", "Level", "Rule", "Surroundings", "rules_table", "validate"]

#: As the docs name them.
GROUPS = {
    "graph": graph,
    "locks": lock,
    "under_lock": under_lock,
    "scopes": scope,
    "code": code,
    "settings": settings,
}
RULES: tuple[Rule, ...] = tuple(rule for group in GROUPS.values() for rule in group.RULES)


def validate(workflow: Workflow, around: Surroundings | None = None) -> list[Finding]:
    """What is wrong with a workflow, errors first, then in the file's order. Raises BadWorkflow where it is none."""
    workflow.check()
    reading = Reading(workflow, around or Surroundings())
    found = [finding for group in GROUPS.values() for finding in group.check(reading)]
    return sorted(found, key=lambda finding: finding.level != "error")


def rules_table(group: str) -> str:
    """The rules of one group, for the docs."""
    lines = ["| rule | level | looks for | the way out |", "|---|---|---|---|"]
    lines += [f"| `{rule.id}` | {rule.level} | {rule.what} | {rule.hint} |" for rule in GROUPS[group].RULES]
    return "\n".join(lines)
