"""Add a lock or a rate limit to a workflow, and remove it byte for byte. This module does no I/O.

A limit always precedes a lock, whichever was added first. The body is the part of the workflow that runs under
the lock. It stays in the workflow (an inline lock) if a Release node after it is certain to run exactly once. Otherwise
the body is moved to a sub-workflow. The workflow that calls it releases the lock whether the body succeeds or fails.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field
from typing import Any, Literal, TypeVar

import msgspec

from backstay.errors import PatchRefused
from backstay.interop.n8n_wire import keys
from backstay.n8n.analysis.body import (
    MoveObstacle,
    caller_reads_result,
    context_warnings,
    find_body_entries,
    find_final_response,
    find_inline_obstacle,
    find_move_obstacle,
    refuse_unpatchable,
)
from backstay.n8n.json_types import is_list
from backstay.n8n.model import N8nWorkflow
from backstay.n8n.patch import record
from backstay.n8n.patch.inline import add_inline_lock, remove_inline_lock
from backstay.n8n.patch.limit import add_limit_nodes, body_paths, remove_limit_nodes, require_nodes
from backstay.n8n.patch.nodes import LIMIT_CHECK, LOCK_ACQUIRE, LOCK_RELEASE, RAISE_OR_RETRY, workflow_id
from backstay.n8n.patch.retention import ALL_UNSAVED, disable_saving, restore_saving
from backstay.n8n.patch.retry import retry_key
from backstay.n8n.patch.scope import read_scope
from backstay.n8n.patch.subworkflow import body_key, body_of, move_body, restore_body

Options = TypeVar("Options")
Transport = Literal["redis", "http"]
OnDenied = Literal["passthrough", "stop", "error"]
#: Patterns that reveal a lock or limit that the user built by hand: names of primitives, Redis keys or HTTP routes.
_BY_HAND = {
    "lock": re.compile(
        rf"workflows\.lock_(?:acquisition|release)\.|\block_(?:acquisition|release)\b|{keys.LOCK_PREFIX}"
        r"|/api/locks/.*/(?:acquire|release)"
    ),
    "limit": re.compile(rf"\brate_limit_check\b|{keys.LIMIT_PREFIX}|/api/limits/"),
}
#: Node kinds with which a user can build a lock or a limit by hand. A Redis node counts only if it writes.
_CAN_LOCK = {"executeWorkflow", "redis", "httpRequest", "code"}
_REDIS_READS = {"get", "keys", "info"}

_NO_RETRY = "when the body fails, start a new execution: n8n's retry resumes at the failed node, without the lock"
_FAILURES_NOT_SAVED = (
    "n8n no longer saves the workflow's failed executions, nor those started by hand in the editor"
    " (saveDataErrorExecution: none, saveManualExecutions: false): a retry would resume in the middle of the body,"
    " without the lock. The error workflow still runs for each failure; --keep-failed-executions saves them anyway."
    " n8n in queue mode ignores these settings: do not retry failed executions there"
)
_IDENTITY = f"the scope ends in {keys.META_SUFFIX}, so its key is another lock's identity key: rename the scope"
_KEEP_FAILED_UNUSED = "--keep-failed-executions has no effect here: the workflow's failed executions are saved anyway"
_IN_PLACE_UNUSED = "--in-place has no effect here: it is for a lock over http whose body cannot become a sub-workflow"
#: The risk that a user accepts with the option `in_place`, in words for messages.
_RETRIED_UNLOCKED = (
    "n8n in queue mode saves failed executions regardless of the settings, and a retry resumes at the failed node,"
    " without the lock"
)


@dataclass(frozen=True, slots=True)
class LockOptions:
    """Options of a lock.

    `error_workflow`: the key of the clean-up workflow that runs when the workflow fails; empty for none.

    `in_place`: with the http transport, accept a workflow whose locked nodes (the body) cannot move into a
    sub-workflow, and leave them in the workflow. Danger: n8n in queue mode can retry them without the lock. Without
    this option, the patch refuses such a workflow.

    `keep_failed`: let n8n save the failed executions of a workflow that is locked in place. Danger: n8n in any
    mode can retry a saved execution without the lock. Implies `in_place`.
    """

    scope: str
    ttl_seconds: int = keys.TTL_SECONDS
    max_wait_seconds: int = keys.MAX_WAIT_SECONDS
    fail_fast: bool = False
    transport: Transport = "redis"
    per_item: bool = False
    error_workflow: str = ""
    keep_failed: bool = False
    in_place: bool = False


@dataclass(frozen=True, slots=True)
class LimitOptions:
    """Options of a rate limit. `on_denied`: what happens to denied items. `passthrough` adds the field
    `rate_limit` to them and continues, `stop` ends the execution without an error, `error` fails it.
    """

    scope: str
    limit: int
    window_seconds: int
    on_denied: OnDenied = "passthrough"
    transport: Transport = "redis"


@dataclass(frozen=True, slots=True)
class Patched:
    """A workflow after a patch was added or removed.

    others: further workflows that the patch created, by key.
    gone: the keys of workflows that must be deleted, because the patch that created them was removed.
    wiring: for a lock, where its body runs: "inline" or "sub-workflow"; for a rate limit always "gate"
        (Merge nodes that hold items back until the limit is checked).
    why: the reason for the wiring of a patch that was added, in words for the user; empty after a removal.
    static_scope: the lock's scope if it is the same for every item and run, else None.
    """

    workflow: N8nWorkflow
    others: dict[str, N8nWorkflow] = field(default_factory=dict[str, N8nWorkflow])
    gone: tuple[str, ...] = ()
    wiring: str = ""
    why: str = ""
    warnings: tuple[str, ...] = ()
    static_scope: str | None = None


def add_lock(workflow: N8nWorkflow, key: str, options: LockOptions) -> Patched:
    """Return the workflow with a lock; the given workflow is not changed. Raise PatchRefused when neither an inline
    lock nor a sub-workflow would be safe.
    """
    _check_range(1, keys.LONGEST_SECONDS, ttl_seconds=options.ttl_seconds)
    _check_range(0, keys.LONGEST_SECONDS, max_wait_seconds=options.max_wait_seconds)
    _refuse_unfit(workflow, "lock")
    scope = read_scope(options.scope, workflow.triggers)
    patched = workflow.copy()
    found = find_body_entries(patched, body_paths(patched))
    body = body_of(patched)
    result = caller_reads_result(patched.triggers)
    # Whether the clean-up workflow releases the lock of a failed execution. Over http, the server knows which locks an
    # execution holds. Over redis, the clean-up workflow checks only the scopes in the settings (`lockScopes`), so the
    # scope must be the same in every run.
    cleaned = bool(options.error_workflow) and (scope.static is not None or options.transport == "http")
    inline_obstacle = (
        "the lock is taken per item" if options.per_item else find_inline_obstacle(patched, found, may_fail=False)
    )
    move_obstacle = find_move_obstacle(patched, body)
    answer = None if move_obstacle is None or options.per_item else find_final_response(patched, found, body)
    if answer is not None:
        rest = [node for node in body if node.name != answer.name]
        if (still := find_move_obstacle(patched, rest)) is None:
            body, move_obstacle = rest, None
        else:
            answer, move_obstacle = None, still
    if inline_obstacle is None and move_obstacle is None and options.transport == "http":
        inline_obstacle = "inline, n8n's retry of a failed or crashed execution would resume without the lock"
    warnings = [*scope.warnings, *_bypass_warnings(patched)]
    if options.transport == "redis" and (scope.static or scope.text).endswith(keys.META_SUFFIX):
        warnings.append(_IDENTITY)
    known = {**asdict(options), "scope": scope.text}
    for asked in ("keep_failed", "in_place"):
        if not known[asked]:
            del known[asked]  # leave out unset options: the record then equals that of versions without them
    others: dict[str, N8nWorkflow] = {}
    record.begin_record(patched)
    before = _set_error_workflow(patched, options)
    if inline_obstacle is None or (move_obstacle is not None and cleaned and not options.per_item):
        obstacle = find_inline_obstacle(patched, found, may_fail=True)
        if obstacle is not None:
            raise _refuse_stuck_body(obstacle, move_obstacle, options)
        held = move_obstacle if options.transport == "http" else None
        if held is not None and not (options.in_place or options.keep_failed):
            raise PatchRefused(
                f"{held.reason}, so the body must stay inline; but {_RETRIED_UNLOCKED}. {held.remedy}."
                " --in-place accepts this; over redis the risk is the same"
            )
        why = "the body is a linear chain of nodes that always reaches its end"
        if inline_obstacle is None and held is not None:
            why = f"{held.reason}; {why}"
        elif inline_obstacle is not None and move_obstacle is not None:
            why = f"{move_obstacle.reason}; {inline_obstacle}, so the error workflow releases the lock"
            warnings.append(
                f"when the body fails, only the error workflow {options.error_workflow!r} releases the lock: "
                "n8n does not run it for manual executions"
            )
        recorded = add_inline_lock(patched, key, known, scope.text, found, result=result)
        if options.transport == "http" and not options.keep_failed:
            recorded["undo"] |= disable_saving(patched, ALL_UNSAVED)
            warnings.append(_FAILURES_NOT_SAVED)
        elif inline_obstacle is not None or held is not None:
            warnings.append(_NO_RETRY)
        wiring = "inline"
    elif move_obstacle is not None:
        raise _refuse_stuck_body(inline_obstacle, move_obstacle, options)
    else:
        warnings += context_warnings(body)
        left = "" if answer is None else answer.name
        recorded, others = move_body(patched, key, known, scope.text, found, result=result, answer=left)
        wiring, why = (
            "sub-workflow",
            inline_obstacle if answer is None else f"{inline_obstacle}; {left!r} responds after the release",
        )
    if (wiring, options.transport) != ("inline", "http"):
        warnings += [_KEEP_FAILED_UNUSED] * options.keep_failed + [_IN_PLACE_UNUSED] * options.in_place
    recorded["undo"] |= before
    record.save_part(patched, "lock", {"options": known, "wiring": wiring, **recorded})
    done = Patched(patched, others, (), wiring, why, tuple(warnings), scope.static)
    return _verify_undo(workflow, done, lambda it: remove_lock(it, key, _reparse(others)).workflow)


def remove_lock(workflow: N8nWorkflow, key: str, others: Mapping[str, N8nWorkflow]) -> Patched:
    """Return the workflow without the lock that `add_lock` added; the user's later edits are kept. Raise PatchRefused
    when the workflow's record of the lock (`meta.backstay`) or the body's sub-workflow is missing.
    """
    options, recorded = read_lock_options(workflow), record.read_part(workflow, "lock")
    if options is None or recorded is None:
        raise PatchRefused("the workflow has no lock that add-lock-to-workflow added")
    require_nodes(workflow, recorded["nodes"])
    plain = workflow.copy()
    gone: tuple[str, ...] = ()
    if recorded["wiring"] == "inline":
        remove_inline_lock(plain, recorded)
        restore_saving(plain, recorded["undo"])
    else:
        inner = others.get(body_key(key))
        if inner is None:
            raise PatchRefused(f"the body is the workflow {body_key(key)!r}, which the workspace does not have")
        if not is_list(record.read_record(inner).get("nodes")):
            raise PatchRefused(
                f"the body, the workflow {body_key(key)!r}, has lost its record (meta.backstay), as a download from"
                " n8n's editor does: restore it from version control, or pull instead of downloading"
            )
        restore_body(plain, recorded, inner)
        again = retry_key(key)
        gone = (body_key(key), *([again] if RAISE_OR_RETRY in recorded["nodes"] and again in others else ()))
    ours = _workflow_reference(options.error_workflow)
    # Restore the previous error workflow only if the current one is still the one that the patch set. If the user has
    # chosen another one since, keep it.
    if "errorWorkflow" in recorded["undo"] and plain.settings.get("errorWorkflow") == ours:
        record.restore_key(plain.data["settings"], "errorWorkflow", recorded["undo"]["errorWorkflow"])
    record.remove_part(plain, "lock")
    return Patched(plain, gone=gone, wiring=recorded["wiring"])


def add_limit(workflow: N8nWorkflow, key: str, options: LimitOptions) -> Patched:
    """Return the workflow with a rate limit; the given workflow is not changed. Raise PatchRefused when it has one
    already, or cannot have one.
    """
    _check_range(1, keys.LARGEST_LIMIT, limit=options.limit)
    _check_range(1, keys.LONGEST_SECONDS, window_seconds=options.window_seconds)
    _refuse_unfit(workflow, "limit")
    scope = read_scope(options.scope, workflow.triggers)
    patched = workflow.copy()
    known = {**asdict(options), "scope": scope.text}
    record.begin_record(patched)
    add_limit_nodes(patched, key, known, scope.text)
    done = Patched(
        patched, {}, (), "gate", "the limit is checked before any other node runs", scope.warnings, scope.static
    )
    return _verify_undo(workflow, done, lambda it: remove_limit(it, key, {}).workflow)


def remove_limit(workflow: N8nWorkflow, key: str, others: Mapping[str, N8nWorkflow]) -> Patched:  # noqa: ARG001 - as remove_lock
    """Undo `add_limit`, and keep the user's later edits."""
    read_limit_options(workflow)  # raises when the record cannot be read
    plain = workflow.copy()
    remove_limit_nodes(plain)
    return Patched(plain, wiring="gate")


def read_lock_options(workflow: N8nWorkflow) -> LockOptions | None:
    """Return the options of the workflow's lock; None when it has none."""
    recorded = record.read_part(workflow, "lock")
    return None if recorded is None else _convert_options(recorded, "lock", LockOptions)


def read_limit_options(workflow: N8nWorkflow) -> LimitOptions | None:
    """Return the options of the workflow's rate limit; None when it has none."""
    recorded = record.read_part(workflow, "limit")
    return None if recorded is None else _convert_options(recorded, "limit", LimitOptions)


def _convert_options(recorded: dict[str, Any], name: record.Part, kind: type[Options]) -> Options:
    try:
        return msgspec.convert(recorded["options"], kind)
    except msgspec.ValidationError as error:
        raise record.unreadable_record(name) from error


def _check_range(smallest: int, largest: int, **numbers: int) -> None:
    """Raise PatchRefused for a number that the primitives reject, because then every execution would fail."""
    for name, number in numbers.items():
        if not smallest <= number <= largest:
            raise PatchRefused(f"{name} is {number}: it must be from {smallest} to {largest}")


def _refuse_unfit(workflow: N8nWorkflow, what: record.Part) -> None:
    if {"lock": read_lock_options(workflow), "limit": read_limit_options(workflow)}[what] is not None:
        raise PatchRefused(f"the workflow already has a {what}: remove it first")
    known = record.read_record(workflow)
    if any(ours in known for ours in ("primitive", "body_of", "retry_of")):
        raise PatchRefused("the workflow is one of Backstay's own and takes no lock or limit")
    refuse_unpatchable(workflow)
    ours = record.added_nodes(workflow)
    names = (LOCK_ACQUIRE, LOCK_RELEASE) if what == "lock" else (LIMIT_CHECK,)
    for node in workflow.nodes:
        takes = node.kind in _CAN_LOCK and (
            node.kind != "redis" or node.parameters.get("operation", "info") not in _REDIS_READS
        )
        by_hand = takes and _BY_HAND[what].search(json.dumps(node.parameters)) is not None
        if node.name not in ours and not node.is_note and (node.name in names or by_hand):
            raise PatchRefused(f"{node.name!r} looks like a {what} that was wired by hand: remove it first")


def _refuse_stuck_body(why: str, move_obstacle: MoveObstacle | None, options: LockOptions) -> PatchRefused:
    """Return the error for a body that can neither stay inline nor move to a sub-workflow."""
    refusal = f"{why}, so the body would have to become a sub-workflow"
    if move_obstacle is None:
        return PatchRefused(refusal)
    line = "make the body a linear chain of nodes that continue on failure"
    cleanup = "a fixed scope and --lock-on-error"
    if options.transport == "http":
        cleanup = f"--lock-on-error and --in-place, which accepts that {_RETRIED_UNLOCKED}"
    if options.per_item:
        line += ", without --per-item"
    return PatchRefused(f"{refusal}; but {move_obstacle.reason}. {move_obstacle.remedy}. Or {line}, with {cleanup}")


def _bypass_warnings(workflow: N8nWorkflow) -> list[str]:
    return [
        f"the trigger {node.name!r} is disabled and bypasses the lock: remove the lock before you enable it"
        for node in workflow.nodes
        if node.is_trigger and node.disabled and not node.is_note and workflow.leaving(node.name)
    ]


def _workflow_reference(key: str) -> str:
    return str(workflow_id(key)["value"])


def _set_error_workflow(workflow: N8nWorkflow, options: LockOptions) -> dict[str, Any]:
    if not options.error_workflow:
        return {}
    settings = workflow.data["settings"]
    wanted = _workflow_reference(options.error_workflow)
    if settings.get("errorWorkflow") == wanted:
        return {}
    before = [settings["errorWorkflow"]] if "errorWorkflow" in settings else []
    settings["errorWorkflow"] = wanted
    return {"errorWorkflow": before}


def _verify_undo(original: N8nWorkflow, done: Patched, undo: Callable[[N8nWorkflow], N8nWorkflow]) -> Patched:
    """Check that undoing the patch gives the original file byte for byte. If it does not, for example because of the
    file's JSON formatting, store the file's original text in the workflow's record of its patches (`meta.backstay`).
    Raise PatchRefused when even that does not help.
    """
    text = original.text()
    if undo(N8nWorkflow.parse(done.workflow.text())).text() != text:
        record.store_original_text(done.workflow, text)
        if undo(N8nWorkflow.parse(done.workflow.text())).text() != text:
            raise PatchRefused("the patch could not be undone byte for byte, so it was not applied")
    return done


def _reparse(others: dict[str, N8nWorkflow]) -> dict[str, N8nWorkflow]:
    return {key: N8nWorkflow.parse(workflow.text()) for key, workflow in others.items()}
