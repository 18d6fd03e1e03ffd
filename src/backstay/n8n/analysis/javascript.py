"""A JavaScript tokenizer that separates code from strings, comments and regular expressions.

It does not parse: callers decide what a name means. A word in a string or a comment never becomes a name token.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

Kind = Literal["name", "number", "string", "template", "regex", "mark", "comment"]

#: After these keywords a `/` starts a regular expression and a `{` starts an object literal.
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
#: Keywords whose `( … )` is followed by a statement.
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


class JavaScriptSyntaxError(Exception):
    """The code is invalid JavaScript: a JavaScript engine would reject it too."""

    def __init__(self, why: str, line: int) -> None:
        super().__init__(why)
        self.why = why
        self.line = line


@dataclass(frozen=True, slots=True)
class Token:
    """One token. `own_this`: the token is inside a function or class of the code, so `this` is not the n8n node."""

    kind: Kind
    text: str
    line: int
    own_this: bool = False

    @property
    def value(self) -> str:
        """The content of a string without its quotes; escape sequences are kept."""
        return self.text[1:-1] if self.kind == "string" else self.text


@dataclass(slots=True)
class _Open:
    """An open bracket. `statement`: a new statement begins after its closing bracket."""

    mark: str
    line: int
    statement: bool
    own_this: bool
    after: str = ""


def tokenize(source: str) -> list[Token]:
    """Return all tokens, including comments. Raise JavaScriptSyntaxError for an unterminated literal or an unbalanced
    bracket.
    """
    return list(_Scanner(source).scan())


class _Scanner:
    def __init__(self, source: str) -> None:
        self.source = source
        self.at = 0
        self.line = 1
        self.open: list[_Open] = []
        #: The last tokens other than comments; three are enough to recognize a function's head.
        self.last: list[Token] = []
        self.value_ended = False
        self.class_head = False
        #: The word before the pair of parentheses that was closed last, such as `if` in `if (x)`.
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
            raise JavaScriptSyntaxError(f"{self.open[-1].mark} is not closed", self.open[-1].line)

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
            raise JavaScriptSyntaxError(f"{what} does not end", self.line)
        return self._emit(kind, found.group(), ended=ended)

    def _emit(self, kind: Kind, text: str, *, ended: bool | None = None) -> Token:
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
        assert found is not None  # noqa: S101 - the caller has checked the first character
        raw = found.group()
        token = self._emit("name", raw)
        if "\\" in raw:
            # A name may contain escapes: JavaScript reads `\u0066etch` as `fetch`. Decode them, so that callers
            # recognize it.
            plain = _ESCAPED.sub(lambda code: chr(min(int(code[1] or code[2], 16), 0x10FFFF)), raw)
            token = Token("name", plain, token.line, token.own_this)
        behind_dot = bool(self.last) and self.last[-1].text in (".", "?.")
        self.value_ended = behind_dot or token.text not in _BEFORE_VALUE | _BLOCKS
        self.class_head = self.class_head or (token.text == "class" and not behind_dot)
        return token

    def _template(self, opening: str) -> Token:
        """Emit a piece of a template literal, up to its end or to the next `${`."""
        start = self.at + len(opening)
        found = _TEMPLATE.match(self.source, start)
        if found is None:
            raise JavaScriptSyntaxError("a template does not end", self.line)
        inner = bool(self.open) and self.open[-1].own_this
        token = self._emit("template", self.source[self.at : found.end()], ended=found[1] == "`")
        if found[1] == "${":
            self.open.append(_Open("${", token.line, statement=False, own_this=inner))
        return token

    def _mark(self) -> Token:
        found = _MARK.match(self.source, self.at)
        assert found is not None  # noqa: S101 - the pattern matches any character
        mark = found.group()
        if mark in "([{":
            after = self.last[-1].text if self.last else ""
            opened = _Open(mark, self.line, self._statement_follows(mark), self._has_own_this(mark), after)
            token = self._emit("mark", mark, ended=False)
            self.open.append(opened)
            return token
        if mark in ")]}":
            return self._close(mark)
        return self._emit("mark", mark, ended=mark in ("++", "--"))

    def _close(self, mark: str) -> Token:
        if not self.open:
            raise JavaScriptSyntaxError(f"{mark} has no opening bracket", self.line)
        if mark == "}" and self.open[-1].mark == "${":
            self.open.pop()
            return self._template("}")
        if self.open[-1].mark != _PAIRS[mark]:
            opened = self.open[-1]
            raise JavaScriptSyntaxError(f"{mark} does not match the {opened.mark} of line {opened.line}", self.line)
        opened = self.open.pop()
        if mark == ")":
            self.closed_after = opened.after
        return self._emit("mark", mark, ended=not opened.statement)

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
        """Whether the bracket opens a scope with its own `this`: a function's parameters or body, or a class; not an
        arrow function.
        """
        if self.open and self.open[-1].own_this:
            return True
        before = self.last[-1] if self.last else None
        if mark == "{" and self.class_head:
            self.class_head = False
            return True
        if mark == "{" and before is not None and before.text == ")":
            # `name( … ) {` is a function or method unless the name is one of these keywords.
            return self.closed_after not in _HEADS
        return mark == "(" and "function" in [token.text for token in self.last[-3:]]
