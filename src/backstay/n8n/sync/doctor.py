"""Is everything that a workspace needs there and right in n8n? Looks only."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from http import HTTPStatus
from typing import Literal

from backstay.errors import N8nError, N8nRefused, N8nUnreachable, WorkspaceError
from backstay.n8n.model import Workflow
from backstay.n8n.sync import sync
from backstay.n8n.sync.client import Client
from backstay.n8n.sync.state import State

Level = Literal["ok", "warning", "error"]
_NOT_THIS_KEY = (HTTPStatus.UNAUTHORIZED, HTTPStatus.FORBIDDEN)


@dataclass(frozen=True, slots=True)
class Check:
    """One thing that was looked at. `hint`: the way out."""

    name: str
    level: Level
    message: str
    hint: str = ""


def examine(client: Client, built: Mapping[str, Workflow], state: State) -> list[Check]:
    """Never raises for what it finds."""
    try:
        client.probe()
    except N8nUnreachable as error:
        return [Check("reachable", "error", str(error), "is n8n running, and is this its address?")]
    except N8nRefused as error:
        return [Check("api key" if error.status in _NOT_THIS_KEY else "n8n", "error", str(error))]
    major = client.major()
    found = [
        Check("reachable", "ok", f"{client.url} answers and takes the key"),
        Check("version", "ok", f"n8n {major}.x" if major else "n8n does not tell its version"),
    ]
    try:
        found += [_of_change(change) for change in sync.status(client, built, state)]
        if major > 1:
            found += _published(client, built, state)
    except WorkspaceError as error:
        found.append(Check("environment", "error", str(error)))
    except N8nError as error:
        found.append(Check("workflows", "error", str(error)))
    found.append(
        Check(
            "credentials",
            "warning",
            "n8n's API lists no credentials, so nobody can tell from here whether they are there",
            "run a workflow that uses them once",
        )
    )
    return found


def _of_change(change: sync.Change) -> Check:
    name = f"workflow {change.key}"
    match change.action:
        case "same":
            return Check(name, "ok", "the same here and in n8n")
        case "conflict":
            return Check(name, "error", change.detail, "look at the diff, then pull, or push with force")
        case "remote":
            return Check(name, "warning", change.detail, "pull it")
        case _:
            return Check(name, "warning", change.detail, "push it")


def _published(client: Client, built: Mapping[str, Workflow], state: State) -> list[Check]:
    """n8n 2.x runs what others call only once it is published."""
    found: list[Check] = []
    for key, workflow in built.items():
        known = state.workflows.get(key)
        remote = client.workflow(known.id) if known is not None and sync.is_called(workflow) else None
        if remote is not None and not remote.published:
            found.append(Check(f"workflow {key}", "error", "others call it, and it is not published", "push it"))
    return found
