"""The entry point of `validate`: run all rules on a workflow and return what n8n itself does not check."""

from __future__ import annotations

from backstay.n8n.analysis.graph import WorkflowGraph
from backstay.n8n.model import N8nWorkflow
from backstay.n8n.rules import code, graph, lock, scope, settings, under_lock
from backstay.n8n.rules.findings import Level, RuleFinding, ValidationRule, WorkspaceContext

__all__ = ["RULES", "Level", "RuleFinding", "ValidationRule", "WorkspaceContext", "rules_table", "validate"]

#: The rule groups, by the names that the docs use.
GROUPS = {
    "graph": graph,
    "locks": lock,
    "under_lock": under_lock,
    "scopes": scope,
    "code": code,
    "settings": settings,
}
RULES: tuple[ValidationRule, ...] = tuple(rule for group in GROUPS.values() for rule in group.RULES)


def validate(workflow: N8nWorkflow, context: WorkspaceContext | None = None) -> list[RuleFinding]:
    """Return the findings, errors first, then in file order. Raise BadWorkflow when the data is not a workflow."""
    workflow.check()
    analysed = WorkflowGraph(workflow, context or WorkspaceContext())
    found = [finding for group in GROUPS.values() for finding in group.check(analysed)]
    return sorted(found, key=lambda finding: finding.level != "error")


def rules_table(group: str) -> str:
    """Return the rules of one module (a key of `GROUPS`) as a Markdown table for the docs."""
    lines = ["| rule | level | finds | remedy |", "|---|---|---|---|"]
    lines += [f"| `{rule.id}` | {rule.level} | {rule.what} | {rule.hint} |" for rule in GROUPS[group].RULES]
    return "\n".join(lines)
