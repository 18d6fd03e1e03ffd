"""Rules for the inputs that a workflow passes to primitives: the scope, and the numbers (TTL, longest wait, limit,
window). Scopes are also compared with those of the other workflows.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

from backstay.interop.n8n_wire.keys import LARGEST_LIMIT, LONGEST_SECONDS, META_SUFFIX
from backstay.n8n.analysis.expressions import ParameterText, expression_tokens, has_dangling_path
from backstay.n8n.analysis.graph import ACQUIRE, WorkflowCall, WorkflowGraph
from backstay.n8n.rules.findings import RuleFinding, ValidationRule

EMPTY = ValidationRule(
    "empty-scope",
    "error",
    "a lock or a limit without a scope",
    "Name the protected resource: ={{ 'excel-' + $json.fileId }}, or a fixed text.",
)
LITERAL = ValidationRule(
    "literal-scope",
    "error",
    "a scope that looks like an expression but is plain text to n8n: `=` or the braces are missing",
    "Write ={{ 'user-' + $json.userId }}",
)
BROKEN = ValidationRule(
    "broken-scope",
    "error",
    "a scope whose expression has a path with nothing before it, such as `.body.fileId`: n8n cannot evaluate it",
    "Write the full path, as in ={{ 'excel-' + $json.body.fileId }}; in a shell write \\$json, or use single quotes.",
)
UNIQUE = ValidationRule(
    "unique-scope",
    "warning",
    "a scope that differs in every run (`$execution.id`, the time, a random number), so executions never contend",
    "Name the protected resource, not the execution.",
)
IDENTITY = ValidationRule(
    "identity-scope",
    "warning",
    "a lock whose scope ends in `:meta`: over Redis its key is another lock's identity key",
    "Give the scope another ending.",
)
UNREGISTERED = ValidationRule(
    "unregistered-scope",
    "warning",
    "a fixed scope over Redis that is not in `lockScopes`, so the error workflow does not release it",
    "backstay n8n scopes add",
)
NUMBER = ValidationRule(
    "bad-number",
    "error",
    "a TTL, a wait, a limit or a window that is not a number or is out of range",
    "Use integers from 1 (max_wait_seconds: any number from 0); at most ten years, or a billion for limits.",
)
TTLS = ValidationRule(
    "differing-ttls",
    "warning",
    "one scope with different TTLs: over Redis, the loser of a concurrent acquire overwrites the holder's TTL",
    "Use one --ttl-seconds per scope, the longest that any workflow needs.",
)
TRANSPORTS = ValidationRule(
    "mixed-transports",
    "error",
    "one scope over Redis and over HTTP: the transports use different keys, so they do not exclude each other",
    "Use one transport per scope.",
)
WEBHOOK = ValidationRule(
    "webhook-waits-long",
    "warning",
    "a webhook that responds at the end may wait longer for its lock than its callers wait for the response",
    "Use --max-wait-seconds 30 or --fail-fast, or let the webhook respond immediately.",
)

RULES = (EMPTY, LITERAL, BROKEN, UNIQUE, IDENTITY, UNREGISTERED, NUMBER, TTLS, TRANSPORTS, WEBHOOK)

#: Seconds after which HTTP clients and proxies commonly give up waiting for a webhook's response.
CALLER_TIMEOUT = 60
_FRACTION = re.compile(r"[0-9]+\.[0-9]+")
_PER_RUN = frozenset({"$now", "$runIndex", "$itemIndex"})
_RANGES = {
    "ttl_seconds": (1, LONGEST_SECONDS),
    "max_wait_seconds": (0, LONGEST_SECONDS),
    "limit": (1, LARGEST_LIMIT),
    "windowSeconds": (1, LONGEST_SECONDS),
}


def check(graph: WorkflowGraph) -> Iterator[RuleFinding]:
    for call in (*graph.acquires.values(), *graph.limits.values()):
        yield from _scope(graph, call)
        yield from _numbers(graph, call)
    for call in graph.acquires.values():
        yield from _check_registration(graph, call)
        yield from _webhook(graph, call)
    yield from _conflicts(graph)


def _at(graph: WorkflowGraph, call: WorkflowCall, field: str) -> str:
    return graph.path(call.node, "parameters", "workflowInputs", "value", field)


def _scope(graph: WorkflowGraph, call: WorkflowCall) -> Iterator[RuleFinding]:
    scope, name = call.scope, call.node.name
    if scope is None:
        return
    path = _at(graph, call, "scope")
    over_redis = call.primitive == ACQUIRE and call.transport != "http"
    if over_redis and (scope.literal or scope.raw).strip().endswith(META_SUFFIX):
        yield IDENTITY.report(f"the scope of {name!r} ends in {META_SUFFIX}", node=name, path=path)
    if scope.literal is not None and not scope.literal.strip():
        yield EMPTY.report(f"{name!r} passes no scope", node=name, path=path)
    elif scope.literal is not None and _looks_computed(scope):
        yield LITERAL.report(f"the scope of {name!r} is the literal text {scope.literal!r}", node=name, path=path)
    elif has_dangling_path(scope.raw):
        yield BROKEN.report(f"the scope of {name!r}, {scope.display}, is not valid JavaScript", node=name, path=path)
    elif scope.literal is None and (why := differs_each_run(scope.raw)):
        yield UNIQUE.report(f"the scope of {name!r} contains {why}", node=name, path=path)


def _looks_computed(scope: ParameterText) -> bool:
    text = scope.literal or ""
    if scope.raw.startswith("=") and "{{" in scope.raw:
        return False
    return any(sign in text for sign in ("$json", "$(", "$node", "$execution", "$workflow", "$input"))


def differs_each_run(expression: str) -> str:
    """Return the part of an expression that differs in each execution, such as `$execution.id`; "" when none does."""
    code = [token.text for token in expression_tokens(expression)]
    for at, word in enumerate(code):
        after = code[at + 1 : at + 3]
        if word == "$execution" and after == [".", "id"]:
            return "$execution.id"
        if word in _PER_RUN and (at == 0 or code[at - 1] not in (".", "?.")):
            return word
        if (word, *after) in {("Date", ".", "now"), ("Math", ".", "random"), ("DateTime", ".", "now")}:
            return "".join((word, *after))
        if word == "new" and after[:1] == ["Date"] and code[at + 2 : at + 4] in (["(", ")"], []):
            return "new Date()"
    return ""


def _numbers(graph: WorkflowGraph, call: WorkflowCall) -> Iterator[RuleFinding]:
    for field, (smallest, largest) in _RANGES.items():
        if call.inputs is None or field not in call.inputs:
            continue
        given = call.inputs[field]
        if isinstance(given, str) and given.startswith("=") and ParameterText.of(given).literal is None:
            continue
        # max_wait_seconds is the only number for which the primitives accept a fraction.
        number = _seconds(given) if field == "max_wait_seconds" else _whole(given)
        if number is None or not smallest <= number <= largest:
            message = f"{field} of {call.node.name!r} is {given!r}"
            yield NUMBER.report(message, node=call.node.name, path=_at(graph, call, field))


def _whole(value: Any) -> int | None:
    """Return an integer, or a text that spells one, as an int; None for any other value."""
    if isinstance(value, bool):
        return None
    if isinstance(value, float):
        return int(value) if value.is_integer() else None
    try:
        return int(str(ParameterText.of(value).literal).strip()) if isinstance(value, (int, str)) else None
    except ValueError:
        return None


def _seconds(value: Any) -> float | None:
    """Return a number, or a text that spells one, as a number; None for any other value."""
    if isinstance(value, float):
        return value
    given = str(ParameterText.of(value).literal).strip() if isinstance(value, str) else ""
    return float(given) if _FRACTION.fullmatch(given) else _whole(value)


def _check_registration(graph: WorkflowGraph, call: WorkflowCall) -> Iterator[RuleFinding]:
    scope = call.scope
    if scope is None or not (scope.literal or "").strip() or _looks_computed(scope):
        return
    # Registered scopes (`lockScopes`) tell the clean-up workflow over Redis which locks to check. Over HTTP the server
    # itself knows which locks an execution holds, so no scope needs to be registered.
    if scope.literal in graph.context.scopes or call.transport == "http":
        return
    message = f"{scope.display}, which {call.node.name!r} acquires, is not in lockScopes"
    yield UNREGISTERED.report(message, node=call.node.name, path=_at(graph, call, "scope"))


def _webhook(graph: WorkflowGraph, call: WorkflowCall) -> Iterator[RuleFinding]:
    inputs = call.inputs or {}
    wait = _seconds(inputs.get("max_wait_seconds"))
    if wait is None or wait <= CALLER_TIMEOUT or inputs.get("wait_till_lock_released") is False:
        return
    for _, node in graph.active_nodes():
        if node.kind == "webhook" and node.parameters.get("responseMode") in ("lastNode", "responseNode"):
            message = f"{node.name!r} responds at the end, and {call.node.name!r} may wait {wait:g} s before that"
            yield WEBHOOK.report(message, node=call.node.name, path=_at(graph, call, "max_wait_seconds"))


def _conflicts(graph: WorkflowGraph) -> Iterator[RuleFinding]:
    mine = [call for call in (*graph.acquires.values(), *graph.limits.values()) if call.scope is not None]
    if not mine:
        return
    theirs = [("", call) for call in mine]
    for key, workflow in sorted(graph.context.others.items()):
        other = WorkflowGraph(workflow, graph.context)
        theirs += [(key, call) for call in (*other.acquires.values(), *other.limits.values())]
    for at, call in enumerate(mine):
        # Report each pair within one file once, at the later node.
        for key, other_call in (*theirs[:at], *theirs[len(mine) :]):
            if other_call.scope is not None and call.scope and other_call.scope.canonical == call.scope.canonical:
                yield from _compare_calls(graph, call, key, other_call)


def _compare_calls(graph: WorkflowGraph, call: WorkflowCall, key: str, other: WorkflowCall) -> Iterator[RuleFinding]:
    if call.primitive != other.primitive:
        return
    name = call.node.name
    assert call.scope is not None  # noqa: S101 - both have one
    where = f"{other.node.name!r} of {key!r}" if key else repr(other.node.name)
    if {call.transport, other.transport} == {"redis", "http"}:
        message = f"{name!r} acquires {call.scope.display} over {call.transport}, {where} over {other.transport}"
        yield TRANSPORTS.report(message, node=name, path=_at(graph, call, "scope"))
    mine, theirs = (_whole((each.inputs or {}).get("ttl_seconds")) for each in (call, other))
    if call.primitive == ACQUIRE and None not in (mine, theirs) and mine != theirs and call.transport != "http":
        message = f"{name!r} acquires {call.scope.display} for {mine} s, {where} for {theirs} s"
        yield TTLS.report(message, node=name, path=_at(graph, call, "ttl_seconds"))
