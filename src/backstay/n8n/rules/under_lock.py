"""What runs while a lock is held, and what goes round the locks."""

from __future__ import annotations

from collections.abc import Iterator

from backstay.interop.n8n_wire.keys import LOCK_PREFIX
from backstay.n8n.analysis import waits
from backstay.n8n.analysis.graph import ACQUIRE, RELEASE, Reading
from backstay.n8n.analysis.lock_state import Held
from backstay.n8n.json_types import items, table
from backstay.n8n.model import Node
from backstay.n8n.patch.nodes import AGAIN, BY_ITSELF, CONFIRMED
from backstay.n8n.patch.record import record
from backstay.n8n.patch.retention import wanted_of
from backstay.n8n.rules.findings import Finding, Rule

SWITCHED_OFF = Rule(
    "disabled-lock",
    "error",
    "a disabled acquire or release: items pass it as if it were not there",
    "Enable it, or remove the lock with backstay n8n remove-lock-from-workflow.",
)
ZERO_ITEMS = Rule(
    "release-may-be-skipped",
    "warning",
    "a node under a lock that may pass nothing on, so that the release never runs",
    "Turn on Always Output Data in its settings, or let add-lock-to-workflow place the lock around it.",
)
STOPS = Rule(
    "stop-under-lock",
    "warning",
    "a Stop and Error under a lock in a workflow without an error workflow: the lock stays until its TTL ends",
    "backstay n8n register-error-handler, or release before stopping.",
)
LONG_WAIT = Rule(
    "wait-under-lock",
    "warning",
    "a Wait under a lock that may outlast its TTL, or that waits for people",
    "Release before waiting and take the lock again; or raise --ttl-seconds above the longest wait.",
)
BY_HAND = Rule(
    "hand-made-lock",
    "warning",
    "Redis nodes that write a lock's key themselves",
    "Delete them, and use backstay n8n add-lock-to-workflow.",
)
SUSPENDS = Rule(
    "wait-in-sub-workflow",
    "warning",
    "a Wait of 65 s or more, or for an answer, in a workflow that others call: n8n suspends it, and its caller does not"
    " hear of a failure, on n8n 1.x not of its result either",
    "Wait in the calling workflow, or in a loop of shorter waits.",
)
SUSPENDS_BODY = Rule(
    "wait-in-locked-body",
    "error",
    "the same in the body of a lock that became a sub-workflow: the locked workflow ends well although its body failed",
    "Wait in a loop of shorter waits; or remove the lock, and let add-lock-to-workflow look at the body again.",
)
RETRIED = Rule(
    "retry-without-lock",
    "warning",
    "a body under a lock over HTTP that n8n's retry takes up in its midst, where no lock is taken: it stays in its"
    " place, and n8n in queue mode keeps what failed; failed executions are kept; or an older Backstay placed the lock",
    "Remove the lock, and let add-lock-to-workflow place it again: it says what holds a body in its place, and what"
    " would do instead. Where that is accepted (--in-place), start anew what failed, and retry nothing.",
)

RULES = (SWITCHED_OFF, ZERO_ITEMS, STOPS, LONG_WAIT, BY_HAND, SUSPENDS, SUSPENDS_BODY, RETRIED)

#: Nodes whose very purpose is to let fewer items through.
_DROPPING = frozenset({"filter", "removeDuplicates", "compareDatasets"})


def check(reading: Reading) -> Iterator[Finding]:
    yield from _by_hand(reading)
    yield from _disabled(reading)
    yield from _suspends(reading)
    yield from _retried(reading)
    if reading.acquires:
        held = Held(reading)
        for place, node in reading.active():
            if held.may[node.name]:
                yield from _under_lock(reading, held, place, node)


def _under_lock(reading: Reading, held: Held, place: int, node: Node) -> Iterator[Finding]:
    if node.kind in _DROPPING and node.data.get("alwaysOutputData") is not True:
        message = f"when {node.name!r} lets nothing through, no release follows"
        yield ZERO_ITEMS.found(message, node=node.name, path=f"nodes[{place}].alwaysOutputData")
    elif node.kind == "stopAndError" and not reading.workflow.settings.get("errorWorkflow"):
        message = f"{node.name!r} ends the execution while a lock is held"
        yield STOPS.found(message, node=node.name, path=f"nodes[{place}]")
    elif node.kind == "wait":
        yield from _wait(reading, held, place, node)


def _wait(reading: Reading, held: Held, place: int, node: Node) -> Iterator[Finding]:
    path = f"nodes[{place}].parameters"
    if node.parameters.get("resume") in ("webhook", "form") and node.parameters.get("limitWaitTime") is not True:
        message = f"{node.name!r} waits for an answer from outside, without a limit, while a lock is held"
        yield LONG_WAIT.found(message, node=node.name, path=path)
        return
    ttls = [
        ttl
        for name in held.may[node.name]
        if isinstance(ttl := (reading.acquires[name].inputs or {}).get("ttl_seconds"), (int, float))
    ]
    seconds = waits.waited(node)
    if ttls and seconds is not None and seconds >= min(ttls):
        message = f"{node.name!r} waits {seconds:g} s, and the lock ends after {min(ttls):g} s"
        yield LONG_WAIT.found(message, node=node.name, path=path)


def _suspends(reading: Reading) -> Iterator[Finding]:
    if not any(node.kind == "executeWorkflowTrigger" for _, node in reading.active()):
        return
    is_body = "body_of" in record(reading.workflow)
    rule, where = (SUSPENDS_BODY, "the body of a lock") if is_body else (SUSPENDS, "a workflow that others call")
    for place, node in reading.active():
        if waits.suspends(node) == "always":
            message = f"{node.name!r} {waits.shown(node)} in {where}"
            yield rule.found(message, node=node.name, path=f"nodes[{place}].parameters")


def _retried(reading: Reading) -> Iterator[Finding]:
    lock = table(record(reading.workflow).get("lock"))
    options = table(lock.get("options"))
    if options.get("transport") == "http" and lock.get("wiring") == "inline":
        message = "its body stays in its place: n8n in queue mode keeps what failed, whatever is set, and retries it"
        accepted = options.get("in_place") or options.get("keep_failed")
        message += " without the lock" if accepted else " without the lock; nobody has accepted that (--in-place)"
        yield RETRIED.found(message, path="meta.backstay.lock")
    elif options.get("transport") == "http" and not {AGAIN, CONFIRMED} <= set(items(lock.get("nodes"))):
        yield RETRIED.found("an older Backstay has placed its lock", path="meta.backstay.lock")
    known = record(reading.workflow)
    if "body_of" in known and known.get("transport") == "http" and BY_ITSELF not in items(known.get("nodes")):
        yield RETRIED.found("an older Backstay has placed the lock that it is the body of", path="meta.backstay.nodes")
    for setting, safe in wanted_of(reading.workflow).items():
        if (given := reading.workflow.settings.get(setting)) != safe:
            yield RETRIED.found(f"{setting} is {given!r}, not {safe!r}", path=f"settings.{setting}")


def _disabled(reading: Reading) -> Iterator[Finding]:
    for call in reading.calls:
        if call.node.disabled and call.primitive in (ACQUIRE, RELEASE):
            message = f"{call.node.name!r} is disabled"
            yield SWITCHED_OFF.found(message, node=call.node.name, path=reading.path(call.node, "disabled"))


def _by_hand(reading: Reading) -> Iterator[Finding]:
    if reading.is_primitive:
        return
    for place, node in reading.active():
        key = node.parameters.get("key")
        writes = node.kind == "redis" and node.parameters.get("operation") in ("incr", "set", "delete")
        if writes and isinstance(key, str) and LOCK_PREFIX in key:
            message = f"{node.name!r} works on {key.removeprefix('=')} itself"
            yield BY_HAND.found(message, node=node.name, path=f"nodes[{place}].parameters.key")
