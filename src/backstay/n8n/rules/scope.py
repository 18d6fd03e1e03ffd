"""Scopes and numbers that calls of the primitives pass, here and in the workspace's other workflows."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

from backstay.interop.n8n_wire.keys import LARGEST_LIMIT, LONGEST_SECONDS, META_SUFFIX
from backstay.n8n.analysis.expressions import Text, begins_with_nothing, words
from backstay.n8n.analysis.graph import ACQUIRE, Call, Reading
from backstay.n8n.rules.findings import Finding, Rule

EMPTY = Rule(
    "empty-scope",
    "error",
    "a lock or a limit without a scope",
    "Name what is protected: ={{ 'excel-' + $json.fileId }}, or a fixed text.",
)
LITERAL = Rule(
    "literal-scope",
    "error",
    "a scope that looks like an expression and is plain text to n8n: `=` or the braces are missing",
    "Write ={{ 'user-' + $json.userId }}",
)
BROKEN = Rule(
    "broken-scope",
    "error",
    "a scope whose expression has a path with nothing before it, as `.body.fileId`: n8n cannot read it",
    "Write what is read, as in ={{ 'excel-' + $json.body.fileId }}; in a shell \\$json, or the whole in single quotes.",
)
UNIQUE = Rule(
    "unique-scope",
    "warning",
    "a scope that differs in every run (`$execution.id`, the time, a random number): nobody ever waits for it",
    "Name what is protected, not who protects it.",
)
IDENTITY = Rule(
    "identity-scope",
    "warning",
    "a lock whose scope ends in `:meta`: over Redis its key is where another lock's holder is written down",
    "Give the scope another ending.",
)
UNREGISTERED = Rule(
    "unregistered-scope",
    "warning",
    "a fixed scope over Redis that is not in `lockScopes`, so the error workflow does not free it",
    "backstay n8n scopes add",
)
NUMBER = Rule(
    "bad-number",
    "error",
    "a TTL, a wait, a limit or a window that is no number or out of range",
    "Seconds and limits are whole numbers from 1 (max_wait_seconds any from 0), ten years at most; limits a billion.",
)
TTLS = Rule(
    "differing-ttls",
    "warning",
    "one scope with different TTLs: over Redis, a loser that comes at the same moment sets the holder's TTL to its own",
    "Use one --ttl-seconds for a scope; the longest that any of them needs.",
)
TRANSPORTS = Rule(
    "mixed-transports",
    "error",
    "one scope over Redis and over HTTP: they use different keys, so they do not exclude one another",
    "Use one transport for a scope.",
)
WEBHOOK = Rule(
    "webhook-waits-long",
    "warning",
    "a webhook that answers at the end may wait longer for its lock than callers wait for an answer",
    "--max-wait-seconds 30, or --fail-fast, or let the webhook answer immediately.",
)

RULES = (EMPTY, LITERAL, BROKEN, UNIQUE, IDENTITY, UNREGISTERED, NUMBER, TTLS, TRANSPORTS, WEBHOOK)

#: What proxies and clients usually allow.
PATIENCE = 60
_FRACTION = re.compile(r"[0-9]+\.[0-9]+")
_PER_RUN = frozenset({"$now", "$runIndex", "$itemIndex"})
_RANGES = {
    "ttl_seconds": (1, LONGEST_SECONDS),
    "max_wait_seconds": (0, LONGEST_SECONDS),
    "limit": (1, LARGEST_LIMIT),
    "windowSeconds": (1, LONGEST_SECONDS),
}


def check(reading: Reading) -> Iterator[Finding]:
    for call in (*reading.acquires.values(), *reading.limits.values()):
        yield from _scope(reading, call)
        yield from _numbers(reading, call)
    for call in reading.acquires.values():
        yield from _registered(reading, call)
        yield from _webhook(reading, call)
    yield from _elsewhere(reading)


def _at(reading: Reading, call: Call, field: str) -> str:
    return reading.path(call.node, "parameters", "workflowInputs", "value", field)


def _scope(reading: Reading, call: Call) -> Iterator[Finding]:
    scope, name = call.scope, call.node.name
    if scope is None:
        return
    path = _at(reading, call, "scope")
    over_redis = call.primitive == ACQUIRE and call.transport != "http"
    if over_redis and (scope.fixed or scope.raw).strip().endswith(META_SUFFIX):
        yield IDENTITY.found(f"the scope of {name!r} ends in {META_SUFFIX}", node=name, path=path)
    if scope.fixed is not None and not scope.fixed.strip():
        yield EMPTY.found(f"{name!r} passes no scope", node=name, path=path)
    elif scope.fixed is not None and _looks_computed(scope):
        yield LITERAL.found(f"the scope of {name!r} is the very text {scope.fixed!r}", node=name, path=path)
    elif begins_with_nothing(scope.raw):
        yield BROKEN.found(f"the scope of {name!r}, {scope.shown}, is no JavaScript", node=name, path=path)
    elif scope.fixed is None and (why := differs_each_run(scope.raw)):
        yield UNIQUE.found(f"the scope of {name!r} has {why} in it", node=name, path=path)


def _looks_computed(scope: Text) -> bool:
    text = scope.fixed or ""
    if scope.raw.startswith("=") and "{{" in scope.raw:
        return False
    return any(sign in text for sign in ("$json", "$(", "$node", "$execution", "$workflow", "$input"))


def differs_each_run(expression: str) -> str:
    """The part of an expression that is new in each execution; "" if there is none."""
    code = [token.text for token in words(expression)]
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


def _numbers(reading: Reading, call: Call) -> Iterator[Finding]:
    for field, (smallest, largest) in _RANGES.items():
        if call.inputs is None or field not in call.inputs:
            continue
        given = call.inputs[field]
        if isinstance(given, str) and given.startswith("=") and Text.of(given).fixed is None:
            continue
        # How long to wait may be a fraction of a second, as the primitives take it.
        number = _seconds(given) if field == "max_wait_seconds" else _whole(given)
        if number is None or not smallest <= number <= largest:
            message = f"{field} of {call.node.name!r} is {given!r}"
            yield NUMBER.found(message, node=call.node.name, path=_at(reading, call, field))


def _whole(value: Any) -> int | None:
    """A whole number, also as a string; None for anything else."""
    if isinstance(value, bool):
        return None
    if isinstance(value, float):
        return int(value) if value.is_integer() else None
    try:
        return int(str(Text.of(value).fixed).strip()) if isinstance(value, (int, str)) else None
    except ValueError:
        return None


def _seconds(value: Any) -> float | None:
    """The same, or a fraction."""
    if isinstance(value, float):
        return value
    given = str(Text.of(value).fixed).strip() if isinstance(value, str) else ""
    return float(given) if _FRACTION.fullmatch(given) else _whole(value)


def _registered(reading: Reading, call: Call) -> Iterator[Finding]:
    scope = call.scope
    if scope is None or not (scope.fixed or "").strip() or _looks_computed(scope):
        return
    # Over HTTP the server knows what an execution holds, and needs no list.
    if scope.fixed in reading.around.scopes or call.transport == "http":
        return
    message = f"{scope.shown}, which {call.node.name!r} takes, is not in lockScopes"
    yield UNREGISTERED.found(message, node=call.node.name, path=_at(reading, call, "scope"))


def _webhook(reading: Reading, call: Call) -> Iterator[Finding]:
    inputs = call.inputs or {}
    wait = _seconds(inputs.get("max_wait_seconds"))
    if wait is None or wait <= PATIENCE or inputs.get("wait_till_lock_released") is False:
        return
    for _, node in reading.active():
        if node.kind == "webhook" and node.parameters.get("responseMode") in ("lastNode", "responseNode"):
            message = f"{node.name!r} answers at the end, and {call.node.name!r} may wait {wait:g} s before that"
            yield WEBHOOK.found(message, node=call.node.name, path=_at(reading, call, "max_wait_seconds"))


def _elsewhere(reading: Reading) -> Iterator[Finding]:
    mine = [call for call in (*reading.acquires.values(), *reading.limits.values()) if call.scope is not None]
    if not mine:
        return
    theirs = [("", call) for call in mine]
    for key, workflow in sorted(reading.around.others.items()):
        other = Reading(workflow, reading.around)
        theirs += [(key, call) for call in (*other.acquires.values(), *other.limits.values())]
    for at, call in enumerate(mine):
        # Of two in one file the later one is told of, once.
        for key, other_call in (*theirs[:at], *theirs[len(mine) :]):
            if other_call.scope is not None and call.scope and other_call.scope.same == call.scope.same:
                yield from _compared(reading, call, key, other_call)


def _compared(reading: Reading, call: Call, key: str, other: Call) -> Iterator[Finding]:
    if call.primitive != other.primitive:
        return
    name = call.node.name
    assert call.scope is not None  # noqa: S101 - both have one
    where = f"{other.node.name!r} of {key!r}" if key else repr(other.node.name)
    if {call.transport, other.transport} == {"redis", "http"}:
        message = f"{name!r} takes {call.scope.shown} over {call.transport}, {where} over {other.transport}"
        yield TRANSPORTS.found(message, node=name, path=_at(reading, call, "scope"))
    mine, theirs = (_whole((each.inputs or {}).get("ttl_seconds")) for each in (call, other))
    if call.primitive == ACQUIRE and None not in (mine, theirs) and mine != theirs and call.transport != "http":
        message = f"{name!r} takes {call.scope.shown} for {mine} s, {where} for {theirs} s"
        yield TTLS.found(message, node=name, path=_at(reading, call, "ttl_seconds"))
