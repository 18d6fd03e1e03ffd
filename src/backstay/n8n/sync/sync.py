"""Push, pull, diff and status between a workspace's built files and one n8n. Nobody's edit is overwritten unless asked.

    sync.push(client, built, state, *, force=False, dry_run=False, keep=…) -> list[Change]
    sync.pull(client, built, state, *, more={}, force=False, dry_run=False) -> list[Change]
    sync.diff(client, built, state) -> list[Change]
    sync.status(client, built, state) -> list[Change]
    minting.mint(client, templates, state, keep=…) -> list[Change]       (backstay.n8n.sync.create_placeholders)
    doctor.examine(client, built, state) -> list[Check]                  (backstay.n8n.sync.doctor)

`built`: hydrated workflows by key, in the order in which they are deployed; a workflow's `id` is n8n's, or empty or
unknown there: then push creates it, and `Change.id` is what the environment's `workflows.<key>.id` is to become (others
that call it are hydrated again and pushed again). `state`: see `backstay.n8n.sync.state`; it is changed in place as
things are done, and `keep` is called to write it down each time. Files are the workspace's business: pull answers what
they are to become (`Change.workflow`).

Conflicts (both sides changed since they last met, or never met and differ; a workflow that n8n no longer has) raise
WorkspaceError before anything is written; with `dry_run` they are answered as `action="conflict"`. Between the look and
the write somebody may still save in n8n's editor: its API has no way to say "only if it is the version that I saw".
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from http import HTTPStatus
from typing import Literal

from backstay.errors import N8nRefused, WorkspaceError
from backstay.n8n.model import Workflow
from backstay.n8n.sync.client import Client, Remote
from backstay.n8n.sync.content import content, difference, echoed, fingerprint, taking
from backstay.n8n.sync.state import Known, State

#: What a push, pull, diff or status found or did for one workflow:
#: same: nothing to do · create, update: in n8n · publish: updated and published there · write: the file
#: local, remote: only this side changed · conflict: both did, or it is gone in n8n · missing: n8n has none (yet)
Action = Literal["same", "create", "update", "publish", "write", "local", "remote", "conflict", "missing"]


@dataclass(frozen=True, slots=True)
class Change:
    key: str
    action: Action
    id: str = ""
    name: str = ""
    #: Why, in words.
    detail: str = ""
    #: From how it is to how it becomes, or from n8n's to ours.
    diff: str = ""
    #: What the built file becomes.
    workflow: Workflow | None = None


@dataclass(frozen=True, slots=True)
class Pair:
    """One workflow on both sides, and what is known of the last time that they were the same."""

    key: str
    local: Workflow | None
    remote: Remote | None
    known: Known | None
    id: str

    @property
    def is_same(self) -> bool:
        if self.local is None or self.remote is None:
            return False
        if fingerprint(self.local.data) == fingerprint(echoed(self.local.data, self.remote.data)):
            return True
        # n8n may have added something of its own to what was pushed.
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
    """Bring n8n up to the built files."""
    pairs = _pairs(client, built, state)
    planned = [_to_push(pair, force) for pair in pairs]
    if dry_run:
        return planned
    _refuse_conflicts(planned, "push")
    major = client.major() if any(is_called(pair.local) for pair in pairs) else 0
    done: list[Change] = []
    for pair, change in zip(pairs, planned, strict=True):
        assert pair.local is not None  # noqa: S101 - push is about built files
        if change.action == "create":
            remote = client.create(content(pair.local.data))
        elif change.action == "update":
            remote = client.update(pair.id, content(pair.local.data))
        else:
            assert pair.remote is not None  # noqa: S101 - it is the same as something
            remote = pair.remote
        remember(state, client, pair.key, pair.local, remote)
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
    """What the files become. `more`: n8n's ids of workflows that have no file yet, by the keys that they get."""
    pairs = _pairs(client, built, state, more or {})
    planned = [_to_pull(pair, force) for pair in pairs]
    if dry_run:
        return planned
    _refuse_conflicts(planned, "pull")
    for pair, change in zip(pairs, planned, strict=True):
        if pair.remote is not None and (change.workflow or pair.local) is not None:
            remember(state, client, pair.key, change.workflow or pair.local, pair.remote)
    return planned


def diff(client: Client, built: Mapping[str, Workflow], state: State) -> list[Change]:
    """What a push would change, as a text for each workflow."""
    return [change for change in status(client, built, state) if change.action != "same"]


def status(client: Client, built: Mapping[str, Workflow], state: State) -> list[Change]:
    """Which side changed since they last met."""
    return [_status(pair) for pair in _pairs(client, built, state)]


# ── how it is decided ──


def _pairs(
    client: Client, built: Mapping[str, Workflow], state: State, more: Mapping[str, str] | None = None
) -> list[Pair]:
    """Everything is read before anything is decided."""
    if state.url and state.url != client.url:
        raise WorkspaceError(
            f"this environment was last pushed to {state.url}, and its ids mean nothing at {client.url}: use another"
            " environment for another n8n, or remove the sync file"
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

    def said(action: Action, detail: str) -> Change:
        return Change(pair.key, action, pair.id, pair.name, detail, text)

    if pair.remote is None:
        if pair.known is not None:
            return said("conflict", "n8n has it no more: somebody deleted it there, or this key may not see it")
        return said("missing", "n8n has none yet")
    if pair.is_same:
        return Change(pair.key, "same", pair.id, pair.name)
    if pair.known is None:
        return said("conflict", "here and in n8n they differ, and were never the same: pull it, or push with force")
    if pair.local_changed and pair.remote_changed:
        return said("conflict", "changed here and in n8n since they were last the same")
    if pair.remote_changed:
        return said("remote", "changed in n8n")
    return said("local", "changed here")


def _to_push(pair: Pair, force: bool) -> Change:
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


def _to_pull(pair: Pair, force: bool) -> Change:
    if pair.remote is None:
        detail = "n8n has it no more" if pair.known is not None else "n8n has none yet"
        return Change(pair.key, "missing", pair.id, pair.name, detail)
    if pair.is_same:
        return Change(pair.key, "same", pair.id, pair.name)
    text = pair.diff(pulls=True)
    if pair.local is not None and not force and pair.local_changed:
        if pair.known is not None and not pair.remote_changed:
            return Change(pair.key, "same", pair.id, pair.name, "changed here only: there is nothing to pull")
        why = "changed here and in n8n" if pair.known is not None else "here and in n8n they differ, and never met"
        return Change(pair.key, "conflict", pair.id, pair.name, why, text)
    becomes = taking(pair.local, pair.remote.data)
    return Change(pair.key, "write", pair.id, pair.remote.name, "changed in n8n", text, becomes)


def _refuse_conflicts(changes: list[Change], verb: str) -> None:
    if found := [change for change in changes if change.action == "conflict"]:
        listed = "; ".join(f"{change.key}: {change.detail}" for change in found)
        raise WorkspaceError(f"nothing was changed, because a {verb} would lose somebody's work: {listed}")


def remember(state: State, client: Client, key: str, local: Workflow | None, remote: Remote) -> None:
    """They are the same now."""
    state.url = client.url
    ours = local.data if local is not None else remote.data
    state.workflows[key] = Known(remote.id, fingerprint(ours), fingerprint(remote.data))
    state.begun.pop(key, None)


# ── publishing ──


#: What n8n starts by itself for another workflow's sake; and what only people start.
_CALLED = {"executeWorkflowTrigger", "errorTrigger"}
_BY_HAND = {"manualTrigger"}


def is_called(workflow: Workflow | None) -> bool:
    """Whether it runs for other workflows only, as a sub-workflow or after their failures: n8n 2.x runs such a one only
    once it is published, and says so in its log at best.
    """
    kinds = {node.kind for node in workflow.triggers} if workflow is not None else set[str]()
    return bool(kinds & _CALLED) and kinds <= _CALLED | _BY_HAND


def _published(client: Client, pair: Pair, remote: Remote, change: Change, major: int) -> Change:
    """Publish what others call on n8n 2.x. On 1.x there is nothing to publish, and nothing is activated: where n8n does
    not tell its version, it is asked to, and a 1.x refuses, because nothing in such a workflow starts by itself.
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
