"""Online health checks: whether n8n is reachable and has everything that the workspace needs. Read-only."""

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
    """One check and its result. `hint`: the remedy."""

    name: str
    level: Level
    message: str
    hint: str = ""


def examine(client: Client, built: Mapping[str, Workflow], state: State) -> list[Check]:
    """Run the checks and return their results. A failed check is a result, not an exception."""
    try:
        client.probe()
    except N8nUnreachable as error:
        return [Check("reachable", "error", str(error), "check that n8n is running at this URL")]
    except N8nRefused as error:
        return [Check("api key" if error.status in _NOT_THIS_KEY else "n8n", "error", str(error))]
    major = client.major()
    found = [
        Check("reachable", "ok", f"{client.url} responds and accepts the key"),
        Check("version", "ok", f"n8n {major}.x" if major else "n8n does not report its version"),
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
            "n8n's API cannot list credentials, so they cannot be checked",
            "run a workflow that uses them",
        )
    )
    return found


def _of_change(change: sync.Change) -> Check:
    name = f"workflow {change.key}"
    match change.action:
        case "same":
            return Check(name, "ok", "equal in the workspace and in n8n")
        case "conflict":
            return Check(name, "error", change.detail, "check the diff, then pull, or push --force")
        case "remote":
            return Check(name, "warning", change.detail, "pull it")
        case _:
            return Check(name, "warning", change.detail, "push it")


def _published(client: Client, built: Mapping[str, Workflow], state: State) -> list[Check]:
    """Check that called workflows are published: n8n 2.x runs a sub-workflow only then."""
    found: list[Check] = []
    for key, workflow in built.items():
        known = state.workflows.get(key)
        remote = client.workflow(known.id) if known is not None and sync.is_called(workflow) else None
        if remote is not None and not remote.published:
            found.append(
                Check(f"workflow {key}", "error", "other workflows call it, but it is not published", "push it")
            )
    return found
