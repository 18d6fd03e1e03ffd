"""What `validate` is made of: rules, findings, and the workspace that a workflow is checked in."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

from backstay.n8n.model import N8nWorkflow

Level = Literal["error", "warning"]


@dataclass(frozen=True, slots=True)
class RuleFinding:
    """One problem that a rule found. `path` is its place in the file, `hint` the remedy."""

    rule: str
    level: Level
    message: str
    node: str = ""
    path: str = ""
    hint: str = ""


@dataclass(frozen=True, slots=True)
class ValidationRule:
    """One thing that `validate` checks. `what` is its description in the docs, `hint` the remedy."""

    id: str
    level: Level
    what: str
    hint: str

    def report(self, message: str, *, node: str = "", path: str = "") -> RuleFinding:
        return RuleFinding(self.id, self.level, message, node, path, self.hint)


@dataclass(frozen=True, slots=True)
class WorkspaceContext:
    """What the rules know about the workspace of the checked workflow. A workflow's key is its file name there.

    `scopes`: the registered scopes (`backstay n8n scopes add`). `workflow_ids`: n8n's workflow ids by key. `others`:
    the other workflows by key. Without ids and other workflows, references to workflows are not checked. `built`: the
    checked file was built from a template, so all its placeholders must be replaced.
    """

    scopes: tuple[str, ...] = ()
    workflow_ids: Mapping[str, str] = field(default_factory=dict[str, str])
    built: bool = False
    others: Mapping[str, N8nWorkflow] = field(default_factory=dict[str, N8nWorkflow])

    @property
    def keys(self) -> frozenset[str]:
        """The keys of all known workflows."""
        return frozenset((*self.workflow_ids, *self.others))
