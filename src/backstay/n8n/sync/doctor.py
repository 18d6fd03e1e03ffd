"""Online health checks: whether n8n is reachable and has everything that the workspace needs. Read-only."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from http import HTTPStatus
from typing import Literal

from backstay.errors import N8nError, N8nRefused, N8nUnreachable, WorkspaceError
from backstay.n8n.model import N8nWorkflow
from backstay.n8n.sync import sync
from backstay.n8n.sync.client import N8nClient
from backstay.n8n.sync.state import SyncState

Level = Literal["ok", "warning", "error"]
_NOT_THIS_KEY = (HTTPStatus.UNAUTHORIZED, HTTPStatus.FORBIDDEN)


@dataclass(frozen=True, slots=True)
class HealthCheck:
    """One check and its result. `hint`: the remedy."""

    name: str
    level: Level
    message: str
    hint: str = ""


def examine(client: N8nClient, built: Mapping[str, N8nWorkflow], state: SyncState) -> list[HealthCheck]:
    """Run the checks and return their results. A failed check is a result, not an exception."""
    try:
        client.probe()
    except N8nUnreachable as error:
        return [HealthCheck("reachable", "error", str(error), "check that n8n is running at this URL")]
    except N8nRefused as error:
        return [HealthCheck("api key" if error.status in _NOT_THIS_KEY else "n8n", "error", str(error))]
    major = client.major_version()
    found = [
        HealthCheck("reachable", "ok", f"{client.url} responds and accepts the key"),
        HealthCheck("version", "ok", f"n8n {major}.x" if major else "n8n does not report its version"),
    ]
    try:
        found += [_describe_change(change) for change in sync.status(client, built, state)]
        if major > 1:
            found += _check_published(client, built, state)
    except WorkspaceError as error:
        found.append(HealthCheck("environment", "error", str(error)))
    except N8nError as error:
        found.append(HealthCheck("workflows", "error", str(error)))
    found.append(
        HealthCheck(
            "credentials",
            "warning",
            "n8n's API cannot list credentials, so they cannot be checked",
            "run a workflow that uses them",
        )
    )
    return found


def _describe_change(change: sync.SyncChange) -> HealthCheck:
    name = f"workflow {change.key}"
    match change.action:
        case "same":
            return HealthCheck(name, "ok", "equal in the workspace and in n8n")
        case "conflict":
            return HealthCheck(name, "error", change.detail, "check the diff, then pull, or push --force")
        case "remote":
            return HealthCheck(name, "warning", change.detail, "pull it")
        case _:
            return HealthCheck(name, "warning", change.detail, "push it")


def _check_published(client: N8nClient, built: Mapping[str, N8nWorkflow], state: SyncState) -> list[HealthCheck]:
    """Report workflows that other workflows call but that are not published: n8n 2.x does not run them."""
    found: list[HealthCheck] = []
    for key, workflow in built.items():
        known = state.workflows.get(key)
        remote = client.workflow(known.id) if known is not None and sync.is_called(workflow) else None
        if remote is not None and not remote.is_published:
            found.append(
                HealthCheck(f"workflow {key}", "error", "other workflows call it, but it is not published", "push it")
            )
    return found
