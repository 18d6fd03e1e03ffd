"""Recursive-descent parser of expressions. Every error has a position and, where possible, a hint."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from typing import Any, cast

from backstay.errors import BadExpression
from backstay.workflow.expressions.tree import And, Compare, Constant, Not, Or, Reference, StatusCall, Tree

#: Limits of one expression: characters, and nesting of parentheses and negations.
LONGEST, DEEPEST = 4000, 50
#: Status functions. They test the results of the needed jobs or, in a step, of the earlier steps.
FUNCTIONS = ("always", "failure", "success", "cancelled")
#: Roots (the first names) of references, each with the forms that its references may have.
ROOTS: dict[str, str] = {
    "needs": "needs.<job>.result or needs.<job>.outputs.<key>",
    "inputs": "inputs.<name>",
    "env": "env.<name>",
    "matrix": "matrix.<name>",
    "outputs": "outputs.<key>",
}

# The quantifiers of numbers are possessive: backtracking over many digits would take quadratic time (ReDoS).
_TOKEN = re.compile(
    r"""\s*(?:
    (?P<number>-?(?:\d++\.?+\d*+|\.\d++)(?:[eE][+-]?\d++)?+(?![\w.]))
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
    "'": "the closing quote is missing",
    '"': "the closing quote is missing",
    "$": "an expression inside another needs no ${{ }}",
    "<": "the only comparisons are == and !=",
    ">": "the only comparisons are == and !=",
}


class Parser:
    """Parses the expression `text`. It is a part of `shown`, the text that the user wrote, and begins there at
    `offset`: errors quote `shown` with a position in it.
    """

    def __init__(self, shown: str, text: str, offset: int) -> None:
        self._shown = shown
        self._offset = offset
        self._tokens = list(self._tokenize(text))
        self._next = 0
        self._depth = 0
        self.references: list[Reference] = []
        self.calls: list[StatusCall] = []

    def _error(self, message: str, at: int) -> BadExpression:
        return BadExpression(message, text=self._shown, position=at)

    def _tokenize(self, text: str) -> Iterator[tuple[str, str, int]]:
        place = 0
        while True:
            found = _TOKEN.match(text, place)
            if found is None:
                rest = text[place:].lstrip()
                at = self._offset + len(text) - len(rest)
                hint = _HINTS.get(rest[0])
                raise self._error(f"unexpected {rest[0]!r}" + (f"; {hint}" if hint else ""), at)
            kind = cast("str", found.lastgroup)
            yield kind, found[kind], self._offset + found.start(kind)
            if kind == "end":
                return
            place = found.end()

    def _accept(self, *signs: str) -> str:
        kind, word, _ = self._tokens[self._next]
        if kind == "sign" and word in signs:
            self._next += 1
            return word
        return ""

    def parse(self) -> Tree:
        if self._tokens[0][0] == "end":
            raise self._error("the expression is empty", self._tokens[0][2])
        tree = self._or()
        kind, word, at = self._tokens[self._next]
        if kind != "end":
            raise self._error(f"unexpected {word!r}; join two expressions with && or ||", at)
        return tree

    def _or(self) -> Tree:
        parts = [self._and()]
        while self._accept("||"):
            parts.append(self._and())
        return parts[0] if len(parts) == 1 else Or(tuple(parts))

    def _and(self) -> Tree:
        parts = [self._equal()]
        while self._accept("&&"):
            parts.append(self._equal())
        return parts[0] if len(parts) == 1 else And(tuple(parts))

    def _equal(self) -> Tree:
        left = self._unary()
        if not (sign := self._accept("==", "!=")):
            return left
        tree = Compare(left, self._unary(), sign == "==")
        kind, word, at = self._tokens[self._next]
        if kind == "sign" and word in ("==", "!="):
            raise self._error("comparisons cannot be chained; join them with &&", at)
        return tree

    def _unary(self) -> Tree:
        kind, word, at = self._tokens[self._next]
        self._depth += 1
        if self._depth > DEEPEST:
            raise self._error(f"parentheses and negations may be nested at most {DEEPEST} deep", at)
        try:
            return Not(self._unary()) if self._accept("!") else self._primary(kind, word, at)
        finally:
            self._depth -= 1

    def _primary(self, kind: str, word: str, at: int) -> Tree:
        self._next += 1
        if kind == "number":
            return Constant(_number(word), at)
        if kind == "text":
            return Constant(word[1:-1].replace(word[0] * 2, word[0]), at)
        if kind == "name":
            return self._name_or_call(word, at)
        if word == "(":
            tree = self._or()
            if not self._accept(")"):
                raise self._error("the parenthesis is not closed; close it with )", at)
            return tree
        what = "the expression ends here, but a value is missing" if kind == "end" else f"unexpected {word!r}"
        raise self._error(what, at)

    def _name_or_call(self, word: str, at: int) -> Tree:
        if self._accept("("):
            if word not in FUNCTIONS:
                raise self._error(f"unknown function {word}(); the functions are {_join(FUNCTIONS, '()')}", at)
            if not self._accept(")"):
                raise self._error(f"{word}() takes no arguments", self._tokens[self._next][2])
            call = StatusCall(word, at)
            self.calls.append(call)
            return call
        if word in _CONSTANTS:
            return Constant(_CONSTANTS[word], at)
        path = [word]
        while self._accept("."):
            kind, name, place = self._tokens[self._next]
            if kind != "name":
                raise self._error("a name is missing after the dot", place)
            self._next += 1
            path.append(name)
        if word in FUNCTIONS and len(path) == 1:
            raise self._error(f"{word} is a function: write {word}()", at)
        if word not in ROOTS:
            known = _join(tuple(ROOTS.values()))
            raise self._error(f"unknown name {word!r}; put text in quotes, or refer to one of {known}", at)
        if not _has_shape(path):
            raise self._error(f"{'.'.join(path)} does not exist; write {ROOTS[word]}", at)
        reference = Reference(tuple(path), at)
        self.references.append(reference)
        return reference


def _has_shape(path: Sequence[str]) -> bool:
    if path[0] != "needs":
        return len(path) == 2  # noqa: PLR2004 - root and name
    return list(path[2:]) == ["result"] or (len(path) == 4 and path[2] == "outputs")  # noqa: PLR2004 - see ROOTS


def _join(words: Sequence[str], suffix: str = "") -> str:
    return ", ".join(f"{word}{suffix}" for word in words)


def _number(word: str) -> float | int:
    return int(word) if re.fullmatch(r"-?\d{1,300}", word) else float(word)
