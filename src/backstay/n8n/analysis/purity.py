"""What JavaScript of a Code node uses that is not its own: by name, outside strings, comments and properties.

A careful reader, not a sandbox: who wants to hide something from it can. n8n's own sandbox is what stops code.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Literal

from backstay.n8n.analysis.javascript import Token

Kind = Literal["helpers", "modules", "network", "timers", "system", "state", "variables"]
#: A kind, what was found, and the line.
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


def impurities(words: list[Token]) -> Iterator[Impurity]:
    """In order, each name once."""
    own = _declared(words)
    told: set[str] = set()
    for at, token in enumerate(words):
        found = _at(words, at, own)
        if found is not None and found[1] not in told:
            told.add(found[1])
            yield (*found, token.line)


def _at(words: list[Token], at: int, own: set[str]) -> tuple[Kind, str] | None:
    token = words[at]
    before = words[at - 1].text if at else ""
    after = words[at + 1].text if at + 1 < len(words) else ""
    if token.kind == "string" and before == "[" and token.value == "constructor":
        return "system", '["constructor"] leads to Function'
    if token.kind != "name":
        return None
    if before in _DOTS:
        built = token.text == "constructor" and after in {"(", ".", "?.", "["}
        return ("system", ".constructor leads to Function") if built else None
    if token.text == "this":
        return _this(words, at)
    if token.text in own or _is_key(words, at):
        return None
    if token.text in _NAMES:
        return _NAMES[token.text], token.text
    if token.text.startswith("$") and token.text not in _ALLOWED:
        return "variables", token.text
    return None


def _this(words: list[Token], at: int) -> tuple[Kind, str] | None:
    """Of the node; in a function or class of one's own it is one's own."""
    if words[at].own_this:
        return None
    mark, member = ([token.value for token in words[at + 1 : at + 3]] + ["", ""])[:2]
    member = member if mark in {".", "?.", "["} else ""
    if member.endswith("getWorkflowStaticData"):
        return "state", f"this.{member}"
    return "helpers", f"this.{member}" if member else "this"


def _is_key(words: list[Token], at: int) -> bool:
    """`fetch: 1` in an object, and `fetch() { … }` in a class or an object, are names of one's own."""
    before = words[at - 1].text if at else ""
    after = words[at + 1].text if at + 1 < len(words) else ""
    if after == ":" and before in {"{", ","}:
        return True
    if after == "(" and before != "new":
        end = _partner(words, at + 1)
        return end + 1 < len(words) and words[end + 1].text == "{"
    return False


def _declared(words: list[Token]) -> set[str]:
    """Names that the code makes itself: variables, functions, classes, parameters. Scopes are not told apart."""
    own: set[str] = set()
    for at, token in enumerate(words[:-1]):
        before = words[at - 1].text if at else ""
        declares = token.kind == "name" and token.text in _DECLARES and before not in _DOTS
        if declares or (token.text == "(" and before == "catch"):
            own |= _pattern(words, at + 1)
        elif token.text == "=>" and at and words[at - 1].kind == "name":
            own.add(words[at - 1].text)
        if token.text == "(" and _heads_a_function(words, at):
            own |= _bound(words[at : _partner(words, at) + 1])
    return own


def _pattern(words: list[Token], at: int) -> set[str]:
    """The names that `a`, `{ a, b: c }` or `[a, ...b]` bind."""
    while at < len(words) and words[at].text == "*":
        at += 1
    if at >= len(words):
        return set()
    if words[at].text in {"{", "["}:
        return _bound(words[at : _partner(words, at) + 1])
    return {words[at].text} if words[at].kind == "name" else set()


def _bound(words: list[Token]) -> set[str]:
    return {
        token.text
        for at, token in enumerate(words[1:-1], 1)
        if token.kind == "name" and words[at - 1].text in {"(", "{", "[", ",", ":", "..."} and words[at + 1].text != ":"
    }


def _heads_a_function(words: list[Token], at: int) -> bool:
    end = _partner(words, at)
    if end + 1 < len(words) and words[end + 1].text == "=>":
        return True
    return any(token.text == "function" for token in words[max(0, at - 3) : at])


def _partner(words: list[Token], at: int) -> int:
    """Where the bracket at this place closes; the end, if it does not."""
    opening, closing = words[at].text, _CLOSING[words[at].text]
    depth = 0
    for place in range(at, len(words)):
        if words[place].kind == "mark":
            depth += (words[place].text == opening) - (words[place].text == closing)
            if depth == 0:
                return place
    return len(words) - 1
