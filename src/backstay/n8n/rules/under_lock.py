"""Rules for the nodes that run while a lock is held, and for nodes with which a lock has no effect: a disabled acquire
or release, and Redis nodes that write a lock's key directly.
"""

from __future__ import annotations

from collections.abc import Iterator

from backstay.interop.n8n_wire.keys import LOCK_PREFIX
from backstay.n8n.analysis import waits
from backstay.n8n.analysis.graph import ACQUIRE, RELEASE, WorkflowGraph
from backstay.n8n.analysis.lock_state import LockState
from backstay.n8n.json_types import as_list, as_mapping
from backstay.n8n.model import N8nNode
from backstay.n8n.patch.nodes import CALLED_BY_LOCK, LOCK_CONFIRMED, RAISE_OR_RETRY
from backstay.n8n.patch.record import read_record
from backstay.n8n.patch.retention import required_settings
from backstay.n8n.rules.findings import RuleFinding, ValidationRule

SWITCHED_OFF = ValidationRule(
    "disabled-lock",
    "error",
    "a disabled acquire or release: items pass through it without effect",
    "Enable it, or remove the lock with backstay n8n remove-lock-from-workflow.",
)
ZERO_ITEMS = ValidationRule(
    "release-may-be-skipped",
    "warning",
    "a node under a lock that may emit no items, so the release never runs",
    "Turn on Always Output Data in its settings, or let add-lock-to-workflow place the lock around it.",
)
STOPS = ValidationRule(
    "stop-under-lock",
    "warning",
    "a Stop and Error under a lock in a workflow without an error workflow: the lock stays until its TTL expires",
    "Run backstay n8n register-error-handler, or release before stopping.",
)
LONG_WAIT = ValidationRule(
    "wait-under-lock",
    "warning",
    "a Wait under a lock that may outlast the lock's TTL, or that waits for a person",
    "Release before waiting and acquire again; or raise --ttl-seconds above the longest wait.",
)
BY_HAND = ValidationRule(
    "hand-made-lock",
    "warning",
    "Redis nodes that write a lock's key directly",
    "Delete them and use backstay n8n add-lock-to-workflow.",
)
SUSPENDS = ValidationRule(
    "wait-in-sub-workflow",
    "warning",
    "a Wait of 65 s or more, or for an answer, in a sub-workflow: n8n suspends it and reports neither a failure nor, on"
    " n8n 1.x, the result to the caller",
    "Wait in the calling workflow, or use a loop of shorter waits.",
)
SUSPENDS_BODY = ValidationRule(
    "wait-in-locked-body",
    "error",
    "such a Wait in a lock's body: the locked workflow succeeds although its body failed",
    "Use a loop of shorter waits; or remove the lock and let add-lock-to-workflow analyse the body again.",
)
RETRIED = ValidationRule(
    "retry-without-lock",
    "warning",
    "a body under a lock over HTTP that n8n can retry from its middle, without the lock: the body is inline and n8n in"
    " queue mode saves failed executions; saving is enabled; or an older Backstay added the lock",
    "Remove the lock and run add-lock-to-workflow again: it names the node that keeps the body inline, and the"
    " alternatives. If you accept the risk (--in-place), start new executions instead of retrying failed ones.",
)

RULES = (SWITCHED_OFF, ZERO_ITEMS, STOPS, LONG_WAIT, BY_HAND, SUSPENDS, SUSPENDS_BODY, RETRIED)

#: Node kinds whose purpose is to drop items.
_DROPPING = frozenset({"filter", "removeDuplicates", "compareDatasets"})


def check(graph: WorkflowGraph) -> Iterator[RuleFinding]:
    yield from _by_hand(graph)
    yield from _disabled(graph)
    yield from _suspends(graph)
    yield from _retried(graph)
    if graph.acquires:
        state = LockState(graph)
        for place, node in graph.active_nodes():
            if state.may_hold[node.name]:
                yield from _under_lock(graph, state, place, node)


def _under_lock(graph: WorkflowGraph, state: LockState, place: int, node: N8nNode) -> Iterator[RuleFinding]:
    if node.kind in _DROPPING and node.data.get("alwaysOutputData") is not True:
        message = f"when {node.name!r} drops all items, the release does not run"
        yield ZERO_ITEMS.report(message, node=node.name, path=f"nodes[{place}].alwaysOutputData")
    elif node.kind == "stopAndError" and not graph.workflow.settings.get("errorWorkflow"):
        message = f"{node.name!r} ends the execution while a lock is held"
        yield STOPS.report(message, node=node.name, path=f"nodes[{place}]")
    elif node.kind == "wait":
        yield from _wait(graph, state, place, node)


def _wait(graph: WorkflowGraph, state: LockState, place: int, node: N8nNode) -> Iterator[RuleFinding]:
    path = f"nodes[{place}].parameters"
    if node.parameters.get("resume") in ("webhook", "form") and node.parameters.get("limitWaitTime") is not True:
        message = f"{node.name!r} waits for an external answer without a time limit while a lock is held"
        yield LONG_WAIT.report(message, node=node.name, path=path)
        return
    ttls = [
        ttl
        for name in state.may_hold[node.name]
        if isinstance(ttl := (graph.acquires[name].inputs or {}).get("ttl_seconds"), (int, float))
    ]
    seconds = waits.wait_seconds(node)
    if ttls and seconds is not None and seconds >= min(ttls):
        message = f"{node.name!r} waits {seconds:g} s, but the lock expires after {min(ttls):g} s"
        yield LONG_WAIT.report(message, node=node.name, path=path)


def _suspends(graph: WorkflowGraph) -> Iterator[RuleFinding]:
    if not any(node.kind == "executeWorkflowTrigger" for _, node in graph.active_nodes()):
        return
    is_body = "body_of" in read_record(graph.workflow)
    rule, where = (SUSPENDS_BODY, "the body of a lock") if is_body else (SUSPENDS, "a sub-workflow")
    for place, node in graph.active_nodes():
        if waits.classify_suspension(node) == "always":
            message = f"{node.name!r} {waits.describe_wait(node)} in {where}"
            yield rule.report(message, node=node.name, path=f"nodes[{place}].parameters")


def _retried(graph: WorkflowGraph) -> Iterator[RuleFinding]:
    lock = as_mapping(read_record(graph.workflow).get("lock"))
    options = as_mapping(lock.get("options"))
    if options.get("transport") == "http" and lock.get("wiring") == "inline":
        message = "the body is inline: n8n in queue mode saves failed executions despite the settings, and retries them"
        accepted = options.get("in_place") or options.get("keep_failed")
        message += " without the lock" if accepted else " without the lock; this risk was not accepted (--in-place)"
        yield RETRIED.report(message, path="meta.backstay.lock")
    elif options.get("transport") == "http" and not {RAISE_OR_RETRY, LOCK_CONFIRMED} <= set(as_list(lock.get("nodes"))):
        yield RETRIED.report("an older Backstay added the lock", path="meta.backstay.lock")
    known = read_record(graph.workflow)
    if "body_of" in known and known.get("transport") == "http" and CALLED_BY_LOCK not in as_list(known.get("nodes")):
        yield RETRIED.report("an older Backstay added the lock whose body this is", path="meta.backstay.nodes")
    for setting, safe in required_settings(graph.workflow).items():
        if (given := graph.workflow.settings.get(setting)) != safe:
            yield RETRIED.report(f"{setting} is {given!r}, not {safe!r}", path=f"settings.{setting}")


def _disabled(graph: WorkflowGraph) -> Iterator[RuleFinding]:
    for call in graph.calls:
        if call.node.disabled and call.primitive in (ACQUIRE, RELEASE):
            message = f"{call.node.name!r} is disabled"
            yield SWITCHED_OFF.report(message, node=call.node.name, path=graph.path(call.node, "disabled"))


def _by_hand(graph: WorkflowGraph) -> Iterator[RuleFinding]:
    if graph.is_primitive:
        return
    for place, node in graph.active_nodes():
        key = node.parameters.get("key")
        writes = node.kind == "redis" and node.parameters.get("operation") in ("incr", "set", "delete")
        if writes and isinstance(key, str) and LOCK_PREFIX in key:
            message = f"{node.name!r} writes {key.removeprefix('=')} directly"
            yield BY_HAND.report(message, node=node.name, path=f"nodes[{place}].parameters.key")
