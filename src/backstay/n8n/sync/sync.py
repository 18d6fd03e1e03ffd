"""Push, pull, diff and status between built workflows and one n8n server. Edits are overwritten only with `force`.

    sync.push(client, built, state, *, force=False, dry_run=False, keep=…) -> list[Change]
    sync.pull(client, built, state, *, more={}, force=False, dry_run=False) -> list[Change]
    sync.diff(client, built, state) -> list[Change]
    sync.status(client, built, state) -> list[Change]

`built`: hydrated workflows by key, in push order. A workflow's `id` is n8n's, or empty or unknown to n8n; then push
creates the workflow, and `Change.id` is the new value for the environment's `workflows.<key>.id` (its callers must be
hydrated and pushed again). `state`: see `backstay.n8n.sync.state`; it is changed in place after each step, and `keep`
is called to persist it. This module writes no files: pull returns their new content (`Change.workflow`).

Conflicts raise WorkspaceError before anything is written: both sides changed since the last sync, they differ and were
never synced, or n8n no longer has the workflow. With `dry_run` they are returned as `action="conflict"`. A race
remains: an edit saved in n8n's editor between the read and the write is lost, because the API has no conditional
update.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from http import HTTPStatus
from typing import Literal

from backstay.errors import N8nRefused, WorkspaceError
from backstay.n8n.model import Workflow
from backstay.n8n.sync.client import Client, RemoteWorkflow
from backstay.n8n.sync.content import apply_remote, content, difference, fingerprint, without_assigned_ids
from backstay.n8n.sync.state import LastSync, State

#: The result for one workflow. same: nothing to do; create, update: done in n8n; publish: updated and published there;
#: write: the file changes; local, remote: only this side changed; conflict: both changed, or n8n no longer has it;
#: missing: n8n does not have it (yet).
Action = Literal["same", "create", "update", "publish", "write", "local", "remote", "conflict", "missing"]


@dataclass(frozen=True, slots=True)
class Change:
    """The result for one workflow."""

    key: str
    action: Action
    id: str = ""
    name: str = ""
    #: The reason, for the user.
    detail: str = ""
    #: A unified diff: from the current to the new content, or from n8n's to the local one.
    diff: str = ""
    #: The new content of the built file.
    workflow: Workflow | None = None


@dataclass(frozen=True, slots=True)
class Pair:
    """One workflow on both sides, with the state of the last sync."""

    key: str
    local: Workflow | None
    remote: RemoteWorkflow | None
    known: LastSync | None
    id: str

    @property
    def is_same(self) -> bool:
        if self.local is None or self.remote is None:
            return False
        if fingerprint(self.local.data) == fingerprint(without_assigned_ids(self.local.data, self.remote.data)):
            return True
        # n8n may have added fields to what was pushed.
        return self.known is not None and not self.local_changed and not self.remote_changed

    @property
    def local_changed(self) -> bool:
        return self.local is not None and (self.known is None or fingerprint(self.local.data) != self.known.local)

    @property
    def remote_changed(self) -> bool:
        return self.remote is not None and (self.known is None or fingerprint(self.remote.data) != self.known.remote)

    @property
    def name(self) -> str:
        return self.local.name if self.local is not None else self.remote.name if self.remote is not None else ""

    def diff(self, *, pulls: bool) -> str:
        ours = self.local.data if self.local is not None else {}
        theirs = self.remote.data if self.remote is not None else {}
        old, new = (f"{self.key} (here)", f"{self.key} (n8n)")
        return difference(ours, theirs, old=old, new=new) if pulls else difference(theirs, ours, old=new, new=old)


def push(
    client: Client,
    built: Mapping[str, Workflow],
    state: State,
    *,
    force: bool = False,
    dry_run: bool = False,
    keep: Callable[[], None] = lambda: None,
) -> list[Change]:
    """Update n8n to the built files."""
    pairs = _pairs(client, built, state)
    planned = [_plan_push(pair, force) for pair in pairs]
    if dry_run:
        return planned
    _refuse_conflicts(planned, "push")
    major = client.major() if any(is_called(pair.local) for pair in pairs) else 0
    done: list[Change] = []
    for pair, change in zip(pairs, planned, strict=True):
        assert pair.local is not None  # noqa: S101 - every pushed pair has a built file
        if change.action == "create":
            remote = client.create(content(pair.local.data))
        elif change.action == "update":
            remote = client.update(pair.id, content(pair.local.data))
        else:
            assert pair.remote is not None  # noqa: S101 - an unchanged pair has a remote side
            remote = pair.remote
        record_sync(state, client, pair.key, pair.local, remote)
        keep()
        done.append(_published(client, pair, remote, change, major))
    return done


def pull(
    client: Client,
    built: Mapping[str, Workflow],
    state: State,
    *,
    more: Mapping[str, str] | None = None,
    force: bool = False,
    dry_run: bool = False,
) -> list[Change]:
    """Return the new file contents. `more`: n8n's ids of workflows without a file yet, by their future keys."""
    pairs = _pairs(client, built, state, more or {})
    planned = [_plan_pull(pair, force) for pair in pairs]
    if dry_run:
        return planned
    _refuse_conflicts(planned, "pull")
    for pair, change in zip(pairs, planned, strict=True):
        if pair.remote is not None and (change.workflow or pair.local) is not None:
            record_sync(state, client, pair.key, change.workflow or pair.local, pair.remote)
    return planned


def diff(client: Client, built: Mapping[str, Workflow], state: State) -> list[Change]:
    """Return what a push would change, with a diff for each workflow."""
    return [change for change in status(client, built, state) if change.action != "same"]


def status(client: Client, built: Mapping[str, Workflow], state: State) -> list[Change]:
    """Return which side changed since the last sync."""
    return [_status(pair) for pair in _pairs(client, built, state)]


# ── decisions ──


def _pairs(
    client: Client, built: Mapping[str, Workflow], state: State, more: Mapping[str, str] | None = None
) -> list[Pair]:
    """Read both sides of every workflow before anything is decided."""
    if state.url and state.url != client.url:
        raise WorkspaceError(
            f"this environment was last pushed to {state.url}, whose ids are not valid at {client.url}: use another"
            " environment for another n8n, or delete the sync file"
        )
    client.probe()
    found: list[Pair] = []
    for key in [*built, *(key for key in more or {} if key not in built)]:
        local, known = built.get(key), state.workflows.get(key)
        wanted = known.id if known is not None else local.id if local is not None else (more or {})[key]
        remote = client.workflow(wanted) if wanted else None
        found.append(Pair(key, local, remote, known, wanted))
    return found


def _status(pair: Pair) -> Change:
    text = pair.diff(pulls=False)

    def result(action: Action, detail: str) -> Change:
        return Change(pair.key, action, pair.id, pair.name, detail, text)

    if pair.remote is None:
        if pair.known is not None:
            return result("conflict", "n8n no longer has it: it was deleted there, or this key may not see it")
        return result("missing", "n8n does not have it yet")
    if pair.is_same:
        return Change(pair.key, "same", pair.id, pair.name)
    if pair.known is None:
        return result("conflict", "the workspace and n8n differ and were never synced: pull it, or push --force")
    if pair.local_changed and pair.remote_changed:
        return result("conflict", "changed in the workspace and in n8n since the last sync")
    if pair.remote_changed:
        return result("remote", "changed in n8n")
    return result("local", "changed in the workspace")


def _plan_push(pair: Pair, force: bool) -> Change:
    found = _status(pair)
    match found.action:
        case "same":
            return found
        case "missing":
            return Change(pair.key, "create", "", pair.name, found.detail, found.diff)
        case "local":
            return Change(pair.key, "update", pair.id, pair.name, found.detail, found.diff)
        case _ if force:
            action: Action = "create" if pair.remote is None else "update"
            return Change(pair.key, action, pair.id, pair.name, f"forced: {found.detail}", found.diff)
        case _:
            return Change(pair.key, "conflict", pair.id, pair.name, found.detail, found.diff)


def _plan_pull(pair: Pair, force: bool) -> Change:
    if pair.remote is None:
        detail = "n8n no longer has it" if pair.known is not None else "n8n does not have it yet"
        return Change(pair.key, "missing", pair.id, pair.name, detail)
    if pair.is_same:
        return Change(pair.key, "same", pair.id, pair.name)
    text = pair.diff(pulls=True)
    if pair.local is not None and not force and pair.local_changed:
        if pair.known is not None and not pair.remote_changed:
            return Change(pair.key, "same", pair.id, pair.name, "changed only in the workspace: nothing to pull")
        why = "changed in both" if pair.known is not None else "the workspace and n8n differ and were never synced"
        return Change(pair.key, "conflict", pair.id, pair.name, why, text)
    becomes = apply_remote(pair.local, pair.remote.data)
    return Change(pair.key, "write", pair.id, pair.remote.name, "changed in n8n", text, becomes)


def _refuse_conflicts(changes: list[Change], verb: str) -> None:
    if found := [change for change in changes if change.action == "conflict"]:
        listed = "; ".join(f"{change.key}: {change.detail}" for change in found)
        raise WorkspaceError(f"nothing was changed, because a {verb} would overwrite edits: {listed}")


def record_sync(state: State, client: Client, key: str, local: Workflow | None, remote: RemoteWorkflow) -> None:
    """Record that both sides are now equal."""
    state.url = client.url
    ours = local.data if local is not None else remote.data
    state.workflows[key] = LastSync(remote.id, fingerprint(ours), fingerprint(remote.data))
    state.begun.pop(key, None)


# ── publishing ──


#: Triggers that n8n starts for another workflow, and triggers that only a person starts.
_CALLED = {"executeWorkflowTrigger", "errorTrigger"}
_BY_HAND = {"manualTrigger"}


def is_called(workflow: Workflow | None) -> bool:
    """Whether only other workflows start this workflow, as a sub-workflow or an error workflow. n8n 2.x runs such a
    workflow only when it is published, and otherwise at best logs a message.
    """
    kinds = {node.kind for node in workflow.triggers} if workflow is not None else set[str]()
    return bool(kinds & _CALLED) and kinds <= _CALLED | _BY_HAND


def _published(client: Client, pair: Pair, remote: RemoteWorkflow, change: Change, major: int) -> Change:
    """Publish a called workflow on n8n 2.x. n8n 1.x has no publishing, and nothing may be activated there. When n8n
    does not report its version, publishing is tried: a 1.x refuses, because no trigger of the workflow starts by
    itself.
    """
    done = Change(pair.key, change.action, remote.id, remote.name, change.detail, change.diff)
    if major == 1 or not is_called(pair.local) or remote.published:
        return done
    try:
        client.publish(remote.id)
    except N8nRefused as error:
        if error.status == HTTPStatus.BAD_REQUEST and "no node to start" in str(error):
            return done
        raise
    return Change(pair.key, "publish", remote.id, remote.name, change.detail or "published", change.diff)
