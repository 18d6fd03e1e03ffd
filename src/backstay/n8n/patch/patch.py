"""Graph surgery that gives a workflow a lock or a rate limit, and its exact inverse. Pure: files are the workspace's.

A limit comes before a lock, whichever was added first. A lock's body stays where it is when one Release behind it runs
exactly once whatever happens; otherwise it becomes a sub-workflow, whose end, good or bad, is always seen.
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
    Fixed,
    answers_with_result,
    entries,
    last_answer,
    own_ids,
    refuse_unsound,
    why_not_inline,
    why_not_moved,
)
from backstay.n8n.json_types import is_list
from backstay.n8n.model import Workflow
from backstay.n8n.patch import record
from backstay.n8n.patch.inline import unweave_inline, weave_inline
from backstay.n8n.patch.limit import body_ways, require, unweave_limit, weave_limit
from backstay.n8n.patch.nodes import ACQUIRE, AGAIN, CHECK, RELEASE, workflow_id
from backstay.n8n.patch.retention import ALL_UNSAVED, keep_as_before, keep_less
from backstay.n8n.patch.retry import retry_key
from backstay.n8n.patch.scope import read_scope
from backstay.n8n.patch.subworkflow import body_key, body_of, unweave_moved, weave_moved

Options = TypeVar("Options")
Transport = Literal["redis", "http"]
OnDenied = Literal["passthrough", "stop", "error"]
#: A lock or limit that somebody made by hand: the primitives, the keys, or the http routes.
_BY_HAND = {
    "lock": re.compile(
        rf"workflows\.lock_(?:acquisition|release)\.|\block_(?:acquisition|release)\b|{keys.LOCK_PREFIX}"
        r"|/api/locks/.*/(?:acquire|release)"
    ),
    "limit": re.compile(rf"\brate_limit_check\b|{keys.LIMIT_PREFIX}|/api/limits/"),
}
#: Kinds that could take a lock; a Redis node that only reads cannot.
_TAKES = {"executeWorkflow", "redis", "httpRequest", "code"}
_READS = {"get", "keys", "info"}

_NO_RETRY = "when the body fails, start it anew: n8n's retry goes on at the node that failed, without the lock"
_NOT_KEPT = (
    "n8n keeps none of its failed executions from now on, nor those that are started by hand in the editor"
    " (saveDataErrorExecution: none, saveManualExecutions: false): a retry would go on in the midst of the body,"
    " without the lock. Its error workflow is still told of each failure; --keep-failed-executions keeps them all the"
    " same. An n8n in queue mode keeps them whatever is set: retry none of them there"
)
_IDENTITY = f"the scope ends in {keys.META_SUFFIX}: its key is where another lock's holder is written down. Rename it"
_KEPT_ANYWAY = "--keep-failed-executions changes nothing here: the workflow's failed executions are kept anyway"
_NOT_HELD = "--in-place changes nothing here: it is for a lock over http whose body cannot become a sub-workflow"
#: What is accepted with `in_place`.
_RETRIED_UNLOCKED = (
    "n8n in queue mode keeps failed executions whatever is set, and a retry goes on at the node that failed, without"
    " the lock"
)


@dataclass(frozen=True, slots=True)
class LockOptions:
    """`error_workflow`: the key of the clean-up that runs when the workflow fails; empty for none.

    `in_place`: over http, a body that cannot become a sub-workflow stays in its place, where n8n in queue mode can
    retry it unlocked; without it such a body is refused. `keep_failed`: it keeps its failed executions as well, which
    any n8n can retry unlocked; whoever says that has accepted the other.
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
    """Denied items: `passthrough` marks them, `stop` ends quietly, `error` raises."""

    scope: str
    limit: int
    window_seconds: int
    on_denied: OnDenied = "passthrough"
    transport: Transport = "redis"


@dataclass(frozen=True, slots=True)
class Woven:
    """A workflow after surgery. `others`: further workflows by their key; `gone`: keys that are no more."""

    workflow: Workflow
    others: dict[str, Workflow] = field(default_factory=dict[str, Workflow])
    gone: tuple[str, ...] = ()
    wiring: str = ""
    why: str = ""
    warnings: tuple[str, ...] = ()
    static_scope: str | None = None


def add_lock(workflow: Workflow, key: str, options: LockOptions) -> Woven:
    """Raises PatchRefused; then nothing has changed. The original stays as it is."""
    _within(1, keys.LONGEST_SECONDS, ttl_seconds=options.ttl_seconds)
    _within(0, keys.LONGEST_SECONDS, max_wait_seconds=options.max_wait_seconds)
    _refuse_second(workflow, "lock")
    scope = read_scope(options.scope, workflow.triggers)
    woven = workflow.copy()
    found = entries(woven, body_ways(woven))
    body = body_of(woven)
    result = answers_with_result(woven.triggers)
    # Over http the server knows what an execution holds; over redis clean-up looks through the scopes that it knows.
    cleaned = bool(options.error_workflow) and (scope.static is not None or options.transport == "http")
    strict = "it is asked for each item" if options.per_item else why_not_inline(woven, found, may_fail=False)
    fixed = why_not_moved(woven, body)
    answer = None if fixed is None or options.per_item else last_answer(woven, found, body)
    if answer is not None:
        rest = [node for node in body if node.name != answer.name]
        if (still := why_not_moved(woven, rest)) is None:
            body, fixed = rest, None
        else:
            answer, fixed = None, still
    if strict is None and fixed is None and options.transport == "http":
        strict = "in its place it would be taken up without its lock when n8n retries a failed or crashed execution"
    warnings = [*scope.warnings, *_around_the_lock(woven)]
    if options.transport == "redis" and (scope.static or scope.text).endswith(keys.META_SUFFIX):
        warnings.append(_IDENTITY)
    known = {**asdict(options), "scope": scope.text}
    for asked in ("keep_failed", "in_place"):
        if not known[asked]:
            del known[asked]  # said where it was asked for alone: what others have written reads the same
    others: dict[str, Workflow] = {}
    record.begin(woven)
    before = _error_workflow(woven, options)
    if strict is None or (fixed is not None and cleaned and not options.per_item):
        loose = why_not_inline(woven, found, may_fail=True)
        if loose is not None:
            raise _stuck(loose, fixed, options)
        held = fixed if options.transport == "http" else None
        if held is not None and not (options.in_place or options.keep_failed):
            raise PatchRefused(
                f"{held.why}, so its body must stay in its place: but {_RETRIED_UNLOCKED}. {held.way_out}."
                " --in-place accepts it as it is; over redis it would be no better"
            )
        why = "the body is one line of nodes that always arrives at its end"
        if strict is None and held is not None:
            why = f"{held.why}; {why}"
        elif strict is not None and fixed is not None:
            why = f"{fixed.why}; {strict}, so the error workflow frees the lock"
            warnings.append(
                f"when the body fails, only the error workflow {options.error_workflow!r} frees the lock: "
                "n8n does not run it for manual executions"
            )
        noted = weave_inline(woven, key, known, scope.text, found, result=result)
        if options.transport == "http" and not options.keep_failed:
            noted["undo"] |= keep_less(woven, ALL_UNSAVED)
            warnings.append(_NOT_KEPT)
        elif strict is not None or held is not None:
            warnings.append(_NO_RETRY)
        wiring = "inline"
    elif fixed is not None:
        raise _stuck(strict, fixed, options)
    else:
        warnings += own_ids(body)
        left = "" if answer is None else answer.name
        noted, others = weave_moved(woven, key, known, scope.text, found, result=result, answer=left)
        wiring, why = "sub-workflow", strict if answer is None else f"{strict}; {left!r} answers behind the release"
    if (wiring, options.transport) != ("inline", "http"):
        warnings += [_KEPT_ANYWAY] * options.keep_failed + [_NOT_HELD] * options.in_place
    noted["undo"] |= before
    record.note(woven, "lock", {"options": known, "wiring": wiring, **noted})
    done = Woven(woven, others, (), wiring, why, tuple(warnings), scope.static)
    return _proven(workflow, done, lambda it: remove_lock(it, key, _read_again(others)).workflow)


def remove_lock(workflow: Workflow, key: str, others: Mapping[str, Workflow]) -> Woven:
    """The inverse of `add_lock`. What was edited since is kept."""
    options, noted = locks_of(workflow), record.part(workflow, "lock")
    if options is None or noted is None:
        raise PatchRefused("it has no lock that was added by add-lock-to-workflow")
    require(workflow, noted["nodes"])
    plain = workflow.copy()
    gone: tuple[str, ...] = ()
    if noted["wiring"] == "inline":
        unweave_inline(plain, noted)
        keep_as_before(plain, noted["undo"])
    else:
        inner = others.get(body_key(key))
        if inner is None:
            raise PatchRefused(f"its body is the workflow {body_key(key)!r}, which is not here")
        if not is_list(record.record(inner).get("nodes")):
            raise PatchRefused(
                f"its body, the workflow {body_key(key)!r}, has lost what was written down of it (meta.backstay), as a"
                " download from n8n's editor has: take it from version control, or pull instead of downloading"
            )
        unweave_moved(plain, noted, inner)
        again = retry_key(key)
        gone = (body_key(key), *([again] if AGAIN in noted["nodes"] and again in others else ()))
    ours = _reference(options.error_workflow)
    # Another one that was registered since stays.
    if "errorWorkflow" in noted["undo"] and plain.settings.get("errorWorkflow") == ours:
        record.put_back(plain.data["settings"], "errorWorkflow", noted["undo"]["errorWorkflow"])
    record.forget(plain, "lock")
    return Woven(plain, gone=gone, wiring=noted["wiring"])


def add_limit(workflow: Workflow, key: str, options: LimitOptions) -> Woven:
    """Raises PatchRefused; then nothing has changed. The original stays as it is."""
    _within(1, keys.LARGEST_LIMIT, limit=options.limit)
    _within(1, keys.LONGEST_SECONDS, window_seconds=options.window_seconds)
    _refuse_second(workflow, "limit")
    scope = read_scope(options.scope, workflow.triggers)
    woven = workflow.copy()
    known = {**asdict(options), "scope": scope.text}
    record.begin(woven)
    weave_limit(woven, key, known, scope.text)
    done = Woven(woven, {}, (), "gate", "a limit asks before anything else runs", scope.warnings, scope.static)
    return _proven(workflow, done, lambda it: remove_limit(it, key, {}).workflow)


def remove_limit(workflow: Workflow, key: str, others: Mapping[str, Workflow]) -> Woven:  # noqa: ARG001 - as remove_lock
    """The inverse of `add_limit`. What was edited since is kept."""
    limits_of(workflow)  # what cannot be read is not taken apart
    plain = workflow.copy()
    unweave_limit(plain)
    return Woven(plain, wiring="gate")


def locks_of(workflow: Workflow) -> LockOptions | None:
    noted = record.part(workflow, "lock")
    return None if noted is None else _options(noted, "lock", LockOptions)


def limits_of(workflow: Workflow) -> LimitOptions | None:
    noted = record.part(workflow, "limit")
    return None if noted is None else _options(noted, "limit", LimitOptions)


def _options(noted: dict[str, Any], name: record.Part, kind: type[Options]) -> Options:
    try:
        return msgspec.convert(noted["options"], kind)
    except msgspec.ValidationError as error:
        raise record.unreadable(name) from error


# ── what is refused, and what is warned of ──


def _within(smallest: int, largest: int, **numbers: int) -> None:
    """What the primitives take: with anything else every execution would fail."""
    for name, number in numbers.items():
        if not smallest <= number <= largest:
            raise PatchRefused(f"{name} is {number}: it must be from {smallest} to {largest}")


def _refuse_second(workflow: Workflow, what: record.Part) -> None:
    if {"lock": locks_of(workflow), "limit": limits_of(workflow)}[what] is not None:
        raise PatchRefused(f"it has a {what} already: remove that first")
    known = record.record(workflow)
    if any(ours in known for ours in ("primitive", "body_of", "retry_of")):
        raise PatchRefused("it is a part of Backstay's own, which takes no locks or limits")
    refuse_unsound(workflow)
    ours = record.our_nodes(workflow)
    names = (ACQUIRE, RELEASE) if what == "lock" else (CHECK,)
    for node in workflow.nodes:
        takes = node.kind in _TAKES and (node.kind != "redis" or node.parameters.get("operation", "info") not in _READS)
        by_hand = takes and _BY_HAND[what].search(json.dumps(node.parameters)) is not None
        if node.name not in ours and not node.is_note and (node.name in names or by_hand):
            raise PatchRefused(f"{node.name!r} looks like a {what} made by hand: take it out first")


def _stuck(why: str, fixed: Fixed | None, options: LockOptions) -> PatchRefused:
    """It can neither stay nor move."""
    said = f"{why}, so its body would have to become a sub-workflow"
    if fixed is None:
        return PatchRefused(said)
    line = "one line of nodes that all go on"
    tidied = "a fixed scope and --lock-on-error"
    if options.transport == "http":
        tidied = f"--lock-on-error and --in-place, which accepts that {_RETRIED_UNLOCKED}"
    if options.per_item:
        line += " without --per-item"
    return PatchRefused(f"{said}; but {fixed.why}. {fixed.way_out}; so would {line}, with {tidied}")


def _around_the_lock(workflow: Workflow) -> list[str]:
    return [
        f"the trigger {node.name!r} is disabled and leads around the lock: to enable it, first take the lock off"
        for node in workflow.nodes
        if node.is_trigger and node.disabled and not node.is_note and workflow.leaving(node.name)
    ]


def _reference(key: str) -> str:
    return str(workflow_id(key)["value"])


def _error_workflow(workflow: Workflow, options: LockOptions) -> dict[str, Any]:
    if not options.error_workflow:
        return {}
    settings = workflow.data["settings"]
    wanted = _reference(options.error_workflow)
    if settings.get("errorWorkflow") == wanted:
        return {}
    before = [settings["errorWorkflow"]] if "errorWorkflow" in settings else []
    settings["errorWorkflow"] = wanted
    return {"errorWorkflow": before}


def _proven(original: Workflow, done: Woven, undo: Callable[[Workflow], Workflow]) -> Woven:
    """Undoes it once, from the very bytes: a file that would not come back as it was takes its own text along."""
    text = original.text()
    if undo(Workflow.parse(done.workflow.text())).text() != text:
        record.keep_text(done.workflow, text)
        if undo(Workflow.parse(done.workflow.text())).text() != text:
            raise PatchRefused("it could not be undone to the letter, so it is not done")
    return done


def _read_again(others: dict[str, Workflow]) -> dict[str, Workflow]:
    return {key: Workflow.parse(workflow.text()) for key, workflow in others.items()}
