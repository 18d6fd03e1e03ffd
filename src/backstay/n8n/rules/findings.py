"""The vocabulary of `validate`: rules, and findings that name a node, a path in the file and a remedy."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

from backstay.n8n.model import Workflow

Level = Literal["error", "warning"]


@dataclass(frozen=True, slots=True)
class Finding:
    """One problem: an error, or a warning that deserves a look."""

    rule: str
    level: Level
    message: str
    node: str = ""
    path: str = ""
    hint: str = ""


@dataclass(frozen=True, slots=True)
class Rule:
    """One thing that `validate` checks. `what` is its description in the docs, `hint` the remedy."""

    id: str
    level: Level
    what: str
    hint: str

    def found(self, message: str, *, node: str = "", path: str = "") -> Finding:
        return Finding(self.id, self.level, message, node, path, self.hint)


@dataclass(frozen=True, slots=True)
class WorkspaceContext:
    """What the workspace knows: registered scopes, workflow ids by key, and the other workflows by key.

    With neither ids nor other workflows, the set of workflows is unknown and references to workflows are not checked.
    `built`: the file is built for n8n, so its placeholders must be resolved.
    """

    scopes: tuple[str, ...] = ()
    workflow_ids: Mapping[str, str] = field(default_factory=dict[str, str])
    built: bool = False
    others: Mapping[str, Workflow] = field(default_factory=dict[str, Workflow])

    @property
    def keys(self) -> frozenset[str]:
        """The keys of all known workflows."""
        return frozenset((*self.workflow_ids, *self.others))
