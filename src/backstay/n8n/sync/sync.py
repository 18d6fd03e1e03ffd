"""Push, pull, diff and status between built workflows and one n8n server. Edits are overwritten only with `force`.

    sync.push(client, built, state, *, force=False, dry_run=False, keep=…) -> list[SyncChange]
    sync.pull(client, built, state, *, more={}, force=False, dry_run=False) -> list[SyncChange]
    sync.diff(client, built, state) -> list[SyncChange]
    sync.status(client, built, state) -> list[SyncChange]

built: the workflows of our files, with all placeholders replaced, by key and in the order in which they are pushed.
state: what both sides contained at the last sync (`backstay.n8n.sync.state`). It is changed in place after each step.
keep: called after each step to persist `state`.
more: workflows in n8n that have no file yet: their ids in n8n, by the keys under which their files will be saved.
dry_run: only return what would be done.

Push creates a workflow if n8n does not know its id. The new id is in `SyncChange.id`; workflows that call the new one
must then be hydrated and pushed again. Pull writes no files: it returns their new content in `SyncChange.workflow`.

A conflict raises WorkspaceError before anything is written; with `dry_run` it is returned as `action="conflict"`. There
are three kinds of conflict: both sides changed since the last sync, both sides differ and were never synced, or n8n no
longer has the workflow.
A lost update remains possible: an edit that a user saves in n8n between the read and the write is overwritten, because
the API has no conditional update.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from http import HTTPStatus
from typing import Literal

from backstay.errors import N8nRefused, WorkspaceError
from backstay.n8n.model import N8nWorkflow
from backstay.n8n.sync.client import N8nClient, RemoteWorkflow
from backstay.n8n.sync.content import apply_remote, content, difference, fingerprint, without_assigned_ids
from backstay.n8n.sync.state import LastSync, SyncState

#: What was done, or must be done, for one workflow.
#: same: nothing, the file and n8n agree.
#: create, update, publish: the workflow is created, updated or published in n8n.
#: write: the file is written.
#: local: only the file has changed since the last sync.
#: remote: only the workflow in n8n has changed since the last sync.
#: conflict: the file and n8n contradict each other (see the module's docstring).
#: missing: n8n does not have the workflow yet.
Action = Literal["same", "create", "update", "publish", "write", "local", "remote", "conflict", "missing"]


@dataclass(frozen=True, slots=True)
class SyncChange:
    """The result of a push, pull, diff or status for one workflow."""

    key: str
    action: Action
    id: str = ""
    name: str = ""
    #: The reason for the action, in words for the user.
    detail: str = ""
    #: A unified diff. A pull shows the change of the file; a push, diff or status shows the change of n8n.
    diff: str = ""
    #: The new content of the built file, for the action `write`.
    workflow: N8nWorkflow | None = None


@dataclass(frozen=True, slots=True)
class WorkflowPair:
    """One workflow on both sides, our file and n8n, with the state of the last sync."""

    key: str
    local: N8nWorkflow | None
    remote: RemoteWorkflow | None
    known: LastSync | None
    id: str

    @property
    def is_same(self) -> bool:
        if self.local is None or self.remote is None:
            return False
        if fingerprint(self.local.data) == fingerprint(without_assigned_ids(self.local.data, self.remote.data)):
            return True
        # n8n adds fields to what was pushed, so the file and n8n may differ although neither was edited.
        # If neither has changed since the last sync, they count as the same.
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
    client: N8nClient,
    built: Mapping[str, N8nWorkflow],
    state: SyncState,
    *,
    force: bool = False,
    dry_run: bool = False,
    keep: Callable[[], None] = lambda: None,
) -> list[SyncChange]:
    """Update n8n from the built files: create missing workflows, update changed ones, and publish those that only
    other workflows start (`is_called`).
    """
    pairs = _pairs(client, built, state)
    planned = [_plan_push(pair, force) for pair in pairs]
    if dry_run:
        return planned
    _refuse_conflicts(planned, "push")
    major = client.major_version() if any(is_called(pair.local) for pair in pairs) else 0
    done: list[SyncChange] = []
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
        done.append(_publish_if_called(client, pair, remote, change, major))
    return done


def pull(
    client: N8nClient,
    built: Mapping[str, N8nWorkflow],
    state: SyncState,
    *,
    more: Mapping[str, str] | None = None,
    force: bool = False,
    dry_run: bool = False,
) -> list[SyncChange]:
    """Return the new file contents. `more`: workflows that have no file yet, as {key to save it under: id in n8n}."""
    pairs = _pairs(client, built, state, more or {})
    planned = [_plan_pull(pair, force) for pair in pairs]
    if dry_run:
        return planned
    _refuse_conflicts(planned, "pull")
    for pair, change in zip(pairs, planned, strict=True):
        if pair.remote is not None and (change.workflow or pair.local) is not None:
            record_sync(state, client, pair.key, change.workflow or pair.local, pair.remote)
    return planned


def diff(client: N8nClient, built: Mapping[str, N8nWorkflow], state: SyncState) -> list[SyncChange]:
    """Return what a push would change, with a diff for each workflow."""
    return [change for change in status(client, built, state) if change.action != "same"]


def status(client: N8nClient, built: Mapping[str, N8nWorkflow], state: SyncState) -> list[SyncChange]:
    """Return for each workflow which side, the file or n8n, has changed since the last sync."""
    return [_status(pair) for pair in _pairs(client, built, state)]


# ── decisions ──


def _pairs(
    client: N8nClient, built: Mapping[str, N8nWorkflow], state: SyncState, more: Mapping[str, str] | None = None
) -> list[WorkflowPair]:
    """Read the n8n side of every workflow, and pair it with the file and the last sync."""
    if state.url and state.url != client.url:
        raise WorkspaceError(
            f"this environment was last pushed to {state.url}, whose ids are not valid at {client.url}: use another"
            " environment for another n8n, or delete the sync file"
        )
    client.probe()
    found: list[WorkflowPair] = []
    for key in [*built, *(key for key in more or {} if key not in built)]:
        local, known = built.get(key), state.workflows.get(key)
        wanted = known.id if known is not None else local.id if local is not None else (more or {})[key]
        remote = client.workflow(wanted) if wanted else None
        found.append(WorkflowPair(key, local, remote, known, wanted))
    return found


def _status(pair: WorkflowPair) -> SyncChange:
    text = pair.diff(pulls=False)

    def result(action: Action, detail: str) -> SyncChange:
        return SyncChange(pair.key, action, pair.id, pair.name, detail, text)

    if pair.remote is None:
        if pair.known is not None:
            return result("conflict", "n8n no longer has it: it was deleted there, or this key may not see it")
        return result("missing", "n8n does not have it yet")
    if pair.is_same:
        return SyncChange(pair.key, "same", pair.id, pair.name)
    if pair.known is None:
        return result("conflict", "the workspace and n8n differ and were never synced: pull it, or push --force")
    if pair.local_changed and pair.remote_changed:
        return result("conflict", "changed in the workspace and in n8n since the last sync")
    if pair.remote_changed:
        return result("remote", "changed in n8n")
    return result("local", "changed in the workspace")


def _plan_push(pair: WorkflowPair, force: bool) -> SyncChange:
    found = _status(pair)
    match found.action:
        case "same":
            return found
        case "missing":
            return SyncChange(pair.key, "create", "", pair.name, found.detail, found.diff)
        case "local":
            return SyncChange(pair.key, "update", pair.id, pair.name, found.detail, found.diff)
        case _ if force:
            action: Action = "create" if pair.remote is None else "update"
            return SyncChange(pair.key, action, pair.id, pair.name, f"forced: {found.detail}", found.diff)
        case _:
            return SyncChange(pair.key, "conflict", pair.id, pair.name, found.detail, found.diff)


def _plan_pull(pair: WorkflowPair, force: bool) -> SyncChange:
    if pair.remote is None:
        detail = "n8n no longer has it" if pair.known is not None else "n8n does not have it yet"
        return SyncChange(pair.key, "missing", pair.id, pair.name, detail)
    if pair.is_same:
        return SyncChange(pair.key, "same", pair.id, pair.name)
    text = pair.diff(pulls=True)
    if pair.local is not None and not force and pair.local_changed:
        if pair.known is not None and not pair.remote_changed:
            return SyncChange(pair.key, "same", pair.id, pair.name, "changed only in the workspace: nothing to pull")
        why = "changed in both" if pair.known is not None else "the workspace and n8n differ and were never synced"
        return SyncChange(pair.key, "conflict", pair.id, pair.name, why, text)
    becomes = apply_remote(pair.local, pair.remote.data)
    return SyncChange(pair.key, "write", pair.id, pair.remote.name, "changed in n8n", text, becomes)


def _refuse_conflicts(changes: list[SyncChange], verb: str) -> None:
    if found := [change for change in changes if change.action == "conflict"]:
        listed = "; ".join(f"{change.key}: {change.detail}" for change in found)
        raise WorkspaceError(f"nothing was changed, because a {verb} would overwrite edits: {listed}")


def record_sync(
    state: SyncState, client: N8nClient, key: str, local: N8nWorkflow | None, remote: RemoteWorkflow
) -> None:
    """Record in the state that the file (`local`) and n8n's workflow (`remote`) are now in sync."""
    state.url = client.url
    ours = local.data if local is not None else remote.data
    state.workflows[key] = LastSync(remote.id, fingerprint(ours), fingerprint(remote.data))
    state.begun.pop(key, None)


# ── publishing ──


#: Triggers that n8n starts for another workflow, and triggers that only a person starts.
_CALLED = {"executeWorkflowTrigger", "errorTrigger"}
_BY_HAND = {"manualTrigger"}


def is_called(workflow: N8nWorkflow | None) -> bool:
    """Whether only other workflows start this one, as a sub-workflow or an error workflow. n8n 2.x runs it only when it
    is published; otherwise n8n at most logs a message.
    """
    kinds = {node.kind for node in workflow.triggers} if workflow is not None else set[str]()
    return bool(kinds & _CALLED) and kinds <= _CALLED | _BY_HAND


def _publish_if_called(
    client: N8nClient, pair: WorkflowPair, remote: RemoteWorkflow, change: SyncChange, major: int
) -> SyncChange:
    """Publish a workflow that only other workflows call, if it is not published yet: n8n 2.x does not run it otherwise.
    On n8n 1.x the same request activates triggers, and is rejected for a workflow without any. So nothing is sent to
    n8n 1.x (`major` 1). If n8n does not report its version (`major` 0), it is sent, and that rejection ignored.
    """
    done = SyncChange(pair.key, change.action, remote.id, remote.name, change.detail, change.diff)
    if major == 1 or not is_called(pair.local) or remote.is_published:
        return done
    try:
        client.publish(remote.id)
    except N8nRefused as error:
        if error.status == HTTPStatus.BAD_REQUEST and "no node to start" in str(error):
            return done
        raise
    return SyncChange(pair.key, "publish", remote.id, remote.name, change.detail or "published", change.diff)
