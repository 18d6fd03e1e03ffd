"""What `validate` says: rules, and findings that name a node, a place in the file and a way out."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

from backstay.n8n.model import Workflow

Level = Literal["error", "warning"]


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing that is wrong (error) or that deserves a look (warning)."""

    rule: str
    level: Level
    message: str
    node: str = ""
    path: str = ""
    hint: str = ""


@dataclass(frozen=True, slots=True)
class Rule:
    """One thing that is looked for. `what` is its line in the docs, `hint` the way out."""

    id: str
    level: Level
    what: str
    hint: str

    def found(self, message: str, *, node: str = "", path: str = "") -> Finding:
        return Finding(self.id, self.level, message, node, path, self.hint)


@dataclass(frozen=True, slots=True)
class Surroundings:
    """What the workspace knows: registered scopes, ids by key, the other workflows by key.

    With neither ids nor others, which workflows there are is unknown, and not held against a workflow. `built`: this is
    the file for n8n, in which placeholders have their values.
    """

    scopes: tuple[str, ...] = ()
    workflow_ids: Mapping[str, str] = field(default_factory=dict[str, str])
    built: bool = False
    others: Mapping[str, Workflow] = field(default_factory=dict[str, Workflow])

    @property
    def keys(self) -> frozenset[str]:
        """Every workflow that there is, by key."""
        return frozenset((*self.workflow_ids, *self.others))
