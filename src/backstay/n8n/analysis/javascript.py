"""JavaScript as tokens: enough to tell code from strings, comments and regular expressions.

No parser: what a name means is for others to say. A word in a string or a comment is never a name here.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

Kind = Literal["name", "number", "string", "template", "regex", "mark", "comment"]

#: After these words a `/` begins a regular expression, and a `{` an object.
_BEFORE_VALUE = frozenset(
    (
        "return",
        "typeof",
        "case",
        "in",
        "of",
        "do",
        "else",
        "void",
        "delete",
        "new",
        "instanceof",
        "throw",
        "yield",
        "await",
        "default",
        "extends",
    )
)
#: The words whose `( … )` is followed by a statement.
_HEADS = frozenset({"if", "for", "while", "switch", "catch", "with"})
_BLOCKS = frozenset({"else", "do", "try", "finally"})
_PAIRS = {")": "(", "]": "[", "}": "{"}

_SPACE = re.compile(r"\s+")
_NAME = re.compile(r"(?:[#$\w]|\\u[0-9a-fA-F]{4}|\\u\{[0-9a-fA-F]{1,6}\})+")
_ESCAPED = re.compile(r"\\u(?:([0-9a-fA-F]{4})|\{([0-9a-fA-F]{1,6})\})")
_NUMBER = re.compile(r"0[xXbBoO]\w+|(?:\d[\d_]*)?\.?\d[\d_]*\.?(?:[eE][+-]?\d+)?n?")
_MARK = re.compile(r"=>|\?\.(?!\d)|\.\.\.|\+\+|--|.", re.DOTALL)
_LINE_COMMENT = re.compile(r"//[^\n\r\u2028\u2029]*")
_STRING = {quote: re.compile(rf"{quote}(?:\\(?:\r\n|.)|[^{quote}\\\n\r])*{quote}", re.DOTALL) for quote in ("'", '"')}
_TEMPLATE = re.compile(r"(?:\\.|\$(?!\{)|[^`\\$])*(`|\$\{)", re.DOTALL)
_REGEX = re.compile(r"/(?![*/])(?:\\.|\[(?:\\.|[^\]\\\n\r])*\]|[^/\\\[\n\r])+/\w*")


class Unreadable(Exception):
    """Code that no JavaScript engine can read either."""

    def __init__(self, why: str, line: int) -> None:
        super().__init__(why)
        self.why = why
        self.line = line


@dataclass(frozen=True, slots=True)
class Token:
    """`own_this`: inside a function or class, where `this` is not the node's."""

    kind: Kind
    text: str
    line: int
    own_this: bool = False

    @property
    def value(self) -> str:
        """What a string says, without its quotes; escapes stay."""
        return self.text[1:-1] if self.kind == "string" else self.text


@dataclass(slots=True)
class _Open:
    """A bracket that waits for its partner. `statement`: what follows the partner begins anew."""

    mark: str
    line: int
    statement: bool
    own_this: bool
    after: str = ""


def tokens(source: str) -> list[Token]:
    """All of them, comments as well. Raises Unreadable where a literal does not end or brackets do not match."""
    return list(_Scanner(source).scan())


class _Scanner:
    def __init__(self, source: str) -> None:
        self.source = source
        self.at = 0
        self.line = 1
        self.open: list[_Open] = []
        #: The last tokens that are no comment; three suffice to know a function's head.
        self.last: list[Token] = []
        self.value_ended = False
        self.class_head = False
        #: The word before the parentheses that were closed last.
        self.closed_after = ""

    def scan(self) -> Iterator[Token]:
        while self.at < len(self.source):
            space = _SPACE.match(self.source, self.at)
            if space:
                self._advance(space.group())
                continue
            token = self._next()
            yield token
            if token.kind != "comment":
                self.last = [*self.last[-3:], token]
        if self.open:
            raise Unreadable(f"{self.open[-1].mark} is not closed", self.open[-1].line)

    def _next(self) -> Token:
        char = self.source[self.at]
        if self.source.startswith("//", self.at) or (self.at == 0 and self.source.startswith("#!")):
            return self._take(_LINE_COMMENT, "comment") if char == "/" else self._take(re.compile(r".*"), "comment")
        if self.source.startswith("/*", self.at):
            return self._take(re.compile(r"/\*.*?\*/", re.DOTALL), "comment")
        if char in _STRING:
            return self._take(_STRING[char], "string", ended=True)
        if char == "`":
            return self._template("`")
        if char.isdigit() or (char == "." and self.source[self.at + 1 : self.at + 2].isdigit()):
            return self._take(_NUMBER, "number", ended=True)
        if _NAME.match(self.source, self.at):
            return self._name()
        if char == "/" and not self.value_ended:
            return self._take(_REGEX, "regex", ended=True)
        return self._mark()

    def _take(self, pattern: re.Pattern[str], kind: Kind, *, ended: bool | None = None) -> Token:
        found = pattern.match(self.source, self.at)
        if found is None:
            what = {"comment": "a comment", "regex": "a regular expression"}.get(kind, f"a {kind}")
            raise Unreadable(f"{what} does not end", self.line)
        return self._made(kind, found.group(), ended=ended)

    def _made(self, kind: Kind, text: str, *, ended: bool | None = None) -> Token:
        token = Token(kind, text, self.line, bool(self.open) and self.open[-1].own_this)
        self._advance(text)
        if ended is not None:
            self.value_ended = ended
        return token

    def _advance(self, text: str) -> None:
        self.at += len(text)
        self.line += text.count("\n")

    def _name(self) -> Token:
        found = _NAME.match(self.source, self.at)
        assert found is not None  # noqa: S101 - the caller has looked
        raw = found.group()
        token = self._made("name", raw)
        if "\\" in raw:
            # `\u0066etch` is fetch to JavaScript, and so it is here.
            plain = _ESCAPED.sub(lambda code: chr(min(int(code[1] or code[2], 16), 0x10FFFF)), raw)
            token = Token("name", plain, token.line, token.own_this)
        behind_dot = bool(self.last) and self.last[-1].text in (".", "?.")
        self.value_ended = behind_dot or token.text not in _BEFORE_VALUE | _BLOCKS
        self.class_head = self.class_head or (token.text == "class" and not behind_dot)
        return token

    def _template(self, opening: str) -> Token:
        """A piece of a template: up to its end, or up to the code in it."""
        start = self.at + len(opening)
        found = _TEMPLATE.match(self.source, start)
        if found is None:
            raise Unreadable("a template does not end", self.line)
        inner = bool(self.open) and self.open[-1].own_this
        token = self._made("template", self.source[self.at : found.end()], ended=found[1] == "`")
        if found[1] == "${":
            self.open.append(_Open("${", token.line, statement=False, own_this=inner))
        return token

    def _mark(self) -> Token:
        found = _MARK.match(self.source, self.at)
        assert found is not None  # noqa: S101 - it takes any character
        mark = found.group()
        if mark in "([{":
            after = self.last[-1].text if self.last else ""
            opened = _Open(mark, self.line, self._statement_follows(mark), self._has_own_this(mark), after)
            token = self._made("mark", mark, ended=False)
            self.open.append(opened)
            return token
        if mark in ")]}":
            return self._close(mark)
        return self._made("mark", mark, ended=mark in ("++", "--"))

    def _close(self, mark: str) -> Token:
        if not self.open:
            raise Unreadable(f"{mark} closes nothing", self.line)
        if mark == "}" and self.open[-1].mark == "${":
            self.open.pop()
            return self._template("}")
        if self.open[-1].mark != _PAIRS[mark]:
            opened = self.open[-1]
            raise Unreadable(f"{mark} does not close the {opened.mark} of line {opened.line}", self.line)
        opened = self.open.pop()
        if mark == ")":
            self.closed_after = opened.after
        return self._made("mark", mark, ended=not opened.statement)

    def _statement_follows(self, mark: str) -> bool:
        before = self.last[-1] if self.last else None
        if mark == "(":
            return before is not None and before.kind == "name" and before.text in _HEADS
        if mark == "{":
            if before is None or before.text in {";", "{", "}", ")", "=>"}:
                return True
            return before.kind == "name" and (before.text in _BLOCKS or before.text not in _BEFORE_VALUE)
        return False

    def _has_own_this(self, mark: str) -> bool:
        """A function's parentheses and body, and a class, have; an arrow's have not."""
        if self.open and self.open[-1].own_this:
            return True
        before = self.last[-1] if self.last else None
        if mark == "{" and self.class_head:
            self.class_head = False
            return True
        if mark == "{" and before is not None and before.text == ")":
            # `name( … ) {` is a function or a method unless the name is one of these.
            return self.closed_after not in _HEADS
        return mark == "(" and "function" in [token.text for token in self.last[-3:]]
