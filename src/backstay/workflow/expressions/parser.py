"""Reads expressions: characters, words, a tree. Every refusal has a place and a way out."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from typing import Any, cast

from backstay.errors import BadExpression
from backstay.workflow.expressions.tree import All, Any_, Call, Compare, Constant, Not, Reference, Tree

#: Characters of one expression, and how deep its parentheses and negations may go.
LONGEST, DEEPEST = 4000, 50
#: What asks how the jobs before it ended.
FUNCTIONS = ("always", "failure", "success", "cancelled")
#: What a name may begin with, and how many names follow.
ROOTS: dict[str, str] = {
    "needs": "needs.<job>.result or needs.<job>.outputs.<key>",
    "inputs": "inputs.<name>",
    "env": "env.<name>",
    "matrix": "matrix.<name>",
    "outputs": "outputs.<key>",
}

_TOKEN = re.compile(
    r"""\s*(?:
    (?P<number>-?(?:\d+\.?\d*|\.\d+)(?:[eE][+-]?\d+)?(?![\w.]))
  | (?P<text>'(?:[^']|'')*'|"(?:[^"]|"")*")
  | (?P<name>[A-Za-z_][\w-]*)
  | (?P<sign>==|!=|&&|\|\||[!().])
  | (?P<end>$)
    )""",
    re.VERBOSE,
)
_CONSTANTS: dict[str, Any] = {"true": True, "false": False, "null": None}
_HINTS = {
    "=": "compare with ==",
    "&": "write &&",
    "|": "write ||",
    "'": "this text has no end",
    '"': "this text has no end",
    "$": "an expression inside another needs no ${{ }}",
    "<": "there are == and != only",
    ">": "there are == and != only",
}


class Parser:
    """Of one expression: `text` stands at `offset` in what is shown."""

    def __init__(self, shown: str, text: str, offset: int) -> None:
        self._shown = shown
        self._offset = offset
        self._tokens = list(self._read(text))
        self._next = 0
        self._depth = 0
        self.references: list[Reference] = []
        self.calls: list[Call] = []

    def _wrong(self, message: str, at: int) -> BadExpression:
        return BadExpression(message, text=self._shown, position=at)

    def _read(self, text: str) -> Iterator[tuple[str, str, int]]:
        place = 0
        while True:
            found = _TOKEN.match(text, place)
            if found is None:
                rest = text[place:].lstrip()
                at = self._offset + len(text) - len(rest)
                hint = _HINTS.get(rest[0])
                raise self._wrong(f"{rest[0]!r} has no meaning here" + (f"; {hint}" if hint else ""), at)
            kind = cast("str", found.lastgroup)
            yield kind, found[kind], self._offset + found.start(kind)
            if kind == "end":
                return
            place = found.end()

    def _sign(self, *signs: str) -> str:
        kind, word, _ = self._tokens[self._next]
        if kind == "sign" and word in signs:
            self._next += 1
            return word
        return ""

    def whole(self) -> Tree:
        if self._tokens[0][0] == "end":
            raise self._wrong("the expression is empty", self._tokens[0][2])
        tree = self._or()
        kind, word, at = self._tokens[self._next]
        if kind != "end":
            raise self._wrong(f"{word!r} is not expected; join two expressions with && or ||", at)
        return tree

    def _or(self) -> Tree:
        parts = [self._and()]
        while self._sign("||"):
            parts.append(self._and())
        return parts[0] if len(parts) == 1 else Any_(tuple(parts))

    def _and(self) -> Tree:
        parts = [self._equal()]
        while self._sign("&&"):
            parts.append(self._equal())
        return parts[0] if len(parts) == 1 else All(tuple(parts))

    def _equal(self) -> Tree:
        left = self._unary()
        if not (sign := self._sign("==", "!=")):
            return left
        tree = Compare(left, self._unary(), sign == "==")
        kind, word, at = self._tokens[self._next]
        if kind == "sign" and word in ("==", "!="):
            raise self._wrong("two things are compared at a time; join comparisons with &&", at)
        return tree

    def _unary(self) -> Tree:
        kind, word, at = self._tokens[self._next]
        self._depth += 1
        if self._depth > DEEPEST:
            raise self._wrong(f"parentheses and negations go at most {DEEPEST} deep", at)
        try:
            return Not(self._unary()) if self._sign("!") else self._primary(kind, word, at)
        finally:
            self._depth -= 1

    def _primary(self, kind: str, word: str, at: int) -> Tree:
        self._next += 1
        if kind == "number":
            return Constant(_number(word), at)
        if kind == "text":
            return Constant(word[1:-1].replace(word[0] * 2, word[0]), at)
        if kind == "name":
            return self._named(word, at)
        if word == "(":
            tree = self._or()
            if not self._sign(")"):
                raise self._wrong("a parenthesis is open; close it with )", at)
            return tree
        what = "the expression ends here, and something is missing" if kind == "end" else f"{word!r} is not expected"
        raise self._wrong(what, at)

    def _named(self, word: str, at: int) -> Tree:
        if self._sign("("):
            if word not in FUNCTIONS:
                raise self._wrong(f"there is no function {word}(); there are {_listed(FUNCTIONS, '()')}", at)
            if not self._sign(")"):
                raise self._wrong(f"{word}() takes nothing", self._tokens[self._next][2])
            call = Call(word, at)
            self.calls.append(call)
            return call
        if word in _CONSTANTS:
            return Constant(_CONSTANTS[word], at)
        path = [word]
        while self._sign("."):
            kind, name, place = self._tokens[self._next]
            if kind != "name":
                raise self._wrong("a name is missing behind the dot", place)
            self._next += 1
            path.append(name)
        if word in FUNCTIONS and len(path) == 1:
            raise self._wrong(f"{word} is a function: write {word}()", at)
        if word not in ROOTS:
            known = _listed(tuple(ROOTS.values()))
            raise self._wrong(f"{word!r} is not known; text goes in quotes, and there are {known}", at)
        if not _has_shape(path):
            raise self._wrong(f"{'.'.join(path)} is not known; write {ROOTS[word]}", at)
        reference = Reference(tuple(path), at)
        self.references.append(reference)
        return reference


def _has_shape(path: Sequence[str]) -> bool:
    if path[0] != "needs":
        return len(path) == 2  # noqa: PLR2004 - root and name
    return list(path[2:]) == ["result"] or (len(path) == 4 and path[2] == "outputs")  # noqa: PLR2004 - as ROOTS says


def _listed(words: Sequence[str], suffix: str = "") -> str:
    return ", ".join(f"{word}{suffix}" for word in words)


def _number(word: str) -> float | int:
    return int(word) if re.fullmatch(r"-?\d{1,300}", word) else float(word)
