"""Find what the JavaScript of a Code node uses beyond its inputs, which are the names in `ALLOWED` (`$json` and so on).
It looks for names of globals such as `fetch`; the same word in a string, in a comment or as the name of a property does
not count.

This is a linter, not a sandbox: code can hide from it. n8n's own sandbox is what restricts code at run time.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Literal

from backstay.n8n.analysis.javascript import Token

Kind = Literal["helpers", "modules", "network", "timers", "system", "state", "variables"]
#: The kind, the name found, and its line.
Impurity = tuple[Kind, str, int]

ALLOWED = ("$json", "$input", "$()", "$node", "$execution", "$workflow", "$now", "$today")
_ALLOWED = frozenset({"$", *ALLOWED})

_NAMES: dict[str, Kind] = {
    **dict.fromkeys(("require", "import", "export", "module", "exports", "crypto"), "modules"),
    **dict.fromkeys(
        ("fetch", "XMLHttpRequest", "WebSocket", "EventSource", "navigator", "axios", "RTCPeerConnection"), "network"
    ),
    **dict.fromkeys(("setTimeout", "setInterval", "setImmediate", "requestAnimationFrame"), "timers"),
    **dict.fromkeys(
        (
            "process",
            "global",
            "globalThis",
            "window",
            "self",
            "eval",
            "Function",
            "WebAssembly",
            "Worker",
            "SharedArrayBuffer",
            "$env",
            "$secrets",
        ),
        "system",
    ),
    **dict.fromkeys(
        ("$getWorkflowStaticData", "getWorkflowStaticData", "localStorage", "sessionStorage", "indexedDB"), "state"
    ),
    **dict.fromkeys(("$helpers", "helpers"), "helpers"),
}
_DECLARES = frozenset({"const", "let", "var", "function", "class"})
_DOTS = frozenset({".", "?."})
_CLOSING = {"(": ")", "[": "]", "{": "}"}


def find_impurities(tokens: list[Token]) -> Iterator[Impurity]:
    """Yield what the code uses beyond its inputs, in source order, each name once."""
    own = _find_declared_names(tokens)
    seen: set[str] = set()
    for at, token in enumerate(tokens):
        found = _classify(tokens, at, own)
        if found is not None and found[1] not in seen:
            seen.add(found[1])
            yield (*found, token.line)


def _classify(tokens: list[Token], at: int, own: set[str]) -> tuple[Kind, str] | None:
    token = tokens[at]
    before = tokens[at - 1].text if at else ""
    after = tokens[at + 1].text if at + 1 < len(tokens) else ""
    if token.kind == "string" and before == "[" and token.value == "constructor":
        return "system", '["constructor"] leads to Function'
    if token.kind != "name":
        return None
    if before in _DOTS:
        built = token.text == "constructor" and after in {"(", ".", "?.", "["}
        return ("system", ".constructor leads to Function") if built else None
    if token.text == "this":
        return _classify_this(tokens, at)
    if token.text in own or _is_key(tokens, at):
        return None
    if token.text in _NAMES:
        return _NAMES[token.text], token.text
    if token.text.startswith("$") and token.text not in _ALLOWED:
        return "variables", token.text
    return None


def _classify_this(tokens: list[Token], at: int) -> tuple[Kind, str] | None:
    """Classify a use of `this`. In a Code node, `this` is n8n's node object, through which the code reaches n8n's
    helpers. Return None where a function or class of the code defines another `this`.
    """
    if tokens[at].own_this:
        return None
    mark, member = ([token.value for token in tokens[at + 1 : at + 3]] + ["", ""])[:2]
    member = member if mark in {".", "?.", "["} else ""
    if member.endswith("getWorkflowStaticData"):
        return "state", f"this.{member}"
    return "helpers", f"this.{member}" if member else "this"


def _is_key(tokens: list[Token], at: int) -> bool:
    """Whether the name is the code's own property: `fetch: 1` in an object, or `fetch() { … }` in a class or object."""
    before = tokens[at - 1].text if at else ""
    after = tokens[at + 1].text if at + 1 < len(tokens) else ""
    if after == ":" and before in {"{", ","}:
        return True
    if after == "(" and before != "new":
        end = _find_closing_bracket(tokens, at + 1)
        return end + 1 < len(tokens) and tokens[end + 1].text == "{"
    return False


def _find_declared_names(tokens: list[Token]) -> set[str]:
    """Return the names that the code declares: variables, functions, classes, parameters. Ignores scoping."""
    own: set[str] = set()
    for at, token in enumerate(tokens[:-1]):
        before = tokens[at - 1].text if at else ""
        declares = token.kind == "name" and token.text in _DECLARES and before not in _DOTS
        if declares or (token.text == "(" and before == "catch"):
            own |= _find_pattern_names(tokens, at + 1)
        elif token.text == "=>" and at and tokens[at - 1].kind == "name":
            own.add(tokens[at - 1].text)
        if token.text == "(" and _heads_a_function(tokens, at):
            own |= _find_bound_names(tokens[at : _find_closing_bracket(tokens, at) + 1])
    return own


def _find_pattern_names(tokens: list[Token], at: int) -> set[str]:
    """Return the names that the pattern at `tokens[at]` binds: `a`, `{ a, b: c }` or `[a, ...b]`."""
    while at < len(tokens) and tokens[at].text == "*":
        at += 1
    if at >= len(tokens):
        return set()
    if tokens[at].text in {"{", "["}:
        return _find_bound_names(tokens[at : _find_closing_bracket(tokens, at) + 1])
    return {tokens[at].text} if tokens[at].kind == "name" else set()


def _find_bound_names(tokens: list[Token]) -> set[str]:
    return {
        token.text
        for at, token in enumerate(tokens[1:-1], 1)
        if token.kind == "name"
        and tokens[at - 1].text in {"(", "{", "[", ",", ":", "..."}
        and tokens[at + 1].text != ":"
    }


def _heads_a_function(tokens: list[Token], at: int) -> bool:
    end = _find_closing_bracket(tokens, at)
    if end + 1 < len(tokens) and tokens[end + 1].text == "=>":
        return True
    return any(token.text == "function" for token in tokens[max(0, at - 3) : at])


def _find_closing_bracket(tokens: list[Token], at: int) -> int:
    """Return the index of the bracket that closes the one at `at`; the last index when it is not closed."""
    opening, closing = tokens[at].text, _CLOSING[tokens[at].text]
    depth = 0
    for place in range(at, len(tokens)):
        if tokens[place].kind == "mark":
            depth += (tokens[place].text == opening) - (tokens[place].text == closing)
            if depth == 0:
                return place
    return len(tokens) - 1
