"""YAML and JSON as a tree that knows where everything stands. Values are made by nobody but us.

Text is what it looks like: `on` is never a boolean, and `3.10` is remembered as it was written. Aliases are followed
within bounds, tags are refused, and so are keys that are there twice.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from backstay.errors import ConfigError, Problem

#: Bytes of a document, its values (those that aliases stand for are counted again), and how deep they lie.
LARGEST, MOST_NODES, DEEPEST = 512 * 1024, 50_000, 40

_INTEGER = re.compile(r"[-+]?\d{1,18}")
_OTHER_BASE = re.compile(r"0o[0-7]{1,20}|0x[0-9a-fA-F]{1,15}")
_FLOAT = re.compile(r"[-+]?(?:\.\d+|\d+(?:\.\d*)?)(?:[eE][-+]?\d{1,3})?")
_WORDS: dict[str, Any] = {"": None, "~": None}
for _word, _value in (("null", None), ("true", True), ("false", False)):
    for _spelling in (_word, _word.capitalize(), _word.upper()):
        _WORDS[_spelling] = _value
_MERGE = "<<"


@dataclass(slots=True)
class Node:
    """Something in a document. Lines and columns count from 1."""

    line: int
    column: int


@dataclass(slots=True)
class Scalar(Node):
    value: Any
    #: As it was written.
    text: str
    #: "'", '"', "|", ">" or "" for plain ones.
    style: str = ""


@dataclass(slots=True)
class Listing(Node):
    items: list[Node] = field(default_factory=list[Node])


@dataclass(slots=True)
class Table(Node):
    """In order. Keys are text."""

    items: dict[str, tuple[Scalar, Node]] = field(default_factory=dict[str, "tuple[Scalar, Node]"])


class Unreadable(Exception):
    """The document ends here, with this problem."""

    def __init__(self, problem: Problem) -> None:
        super().__init__(str(problem))
        self.problem = problem


def decode(raw: bytes | str) -> str:
    """The text of a document. Raises Unreadable."""
    if isinstance(raw, str):
        try:
            size = len(raw.encode())
        except UnicodeEncodeError as error:
            raise Unreadable(_at("this is no valid text (a lone surrogate)", raw, error.start)) from None
        text = raw
    else:
        size = len(raw)
        text = ""
    if size > LARGEST:
        raise Unreadable(Problem(f"the document has {size} bytes, and a workflow has at most {LARGEST}"))
    if not isinstance(raw, str):
        try:
            text = raw.decode("utf-8")
        except UnicodeDecodeError as error:
            before = raw[: error.start].decode("utf-8", errors="replace")
            message = f"byte {raw[error.start]:#04x} is not UTF-8; save the file as UTF-8"
            raise Unreadable(_at(message, before, len(before))) from None
    return text.removeprefix("\ufeff")


def _at(message: str, text: str, place: int) -> Problem:
    before = text[:place]
    return Problem(message, before.count("\n") + 1, place - (before.rfind("\n") + 1) + 1)


def compose(text: str, problems: list[Problem]) -> Node:
    """The tree of one document. What can be passed over is added to `problems`; else raises Unreadable."""
    try:
        from ruamel.yaml import YAML
        from ruamel.yaml.error import MarkedYAMLError, YAMLError
    except ImportError:
        raise ConfigError("workflows in YAML or JSON need a reader: pip install 'backstay[yaml]'") from None
    yaml: Any = YAML(typ="safe", pure=True)
    composer = _Composer(yaml.parse(text), problems)
    try:
        return composer.document()
    except MarkedYAMLError as error:
        marked: Any = error
        mark = marked.problem_mark or marked.context_mark
        what = " ".join(str(marked.problem or marked.context or "it cannot be read").split())
        raise Unreadable(
            Problem(f"this is not YAML: {what}", mark.line + 1, mark.column + 1) if mark else Problem(what)
        ) from None
    except YAMLError as error:
        place = getattr(error, "position", None)
        what = f"this is not YAML: {str(error).splitlines()[0]}"
        raise Unreadable(_at(what, text, place) if isinstance(place, int) else Problem(what)) from None
    except (ValueError, OverflowError, RecursionError, AssertionError, IndexError, TypeError, AttributeError) as error:
        # What the parser itself stumbles over: an escape of no character, say.
        raise Unreadable(Problem(f"this is not YAML: {type(error).__name__}: {error}")) from None


class _Composer:
    """Reads events one at a time: nothing is made of what comes behind a bound."""

    def __init__(self, events: Iterator[Any], problems: list[Problem]) -> None:
        self._events = events
        self._problems = problems
        self._count = 0
        #: Anchors: the node, how many values it stands for, and how deep it is.
        self._anchors: dict[str, tuple[Node, int, int]] = {}

    def _next(self) -> tuple[str, Any, int, int]:
        event = next(self._events)
        kind = type(event).__name__.removesuffix("Event")
        return kind, event, event.start_mark.line + 1, event.start_mark.column + 1

    def document(self) -> Node:
        self._next()  # the stream begins
        kind, _, line, column = self._next()
        if kind != "DocumentStart":
            raise Unreadable(Problem("the document is empty", line, column))
        node, _ = self._node(*self._next(), depth=1)
        self._next()  # the document ends
        kind, _, line, column = self._next()
        if kind != "StreamEnd":
            raise Unreadable(
                Problem("there is a second document; put each workflow in a file of its own", line, column)
            )
        return node

    def _node(self, kind: str, event: Any, line: int, column: int, *, depth: int) -> tuple[Node, int]:
        """A node, and how deep it goes."""
        if depth > DEEPEST:
            raise Unreadable(Problem(f"this lies more than {DEEPEST} levels deep", line, column))
        if kind == "Alias":
            return self._alias(event.anchor, line, column, depth)
        before = self._count
        self._counted(1, line, column)
        tag = getattr(event, "tag", None)
        if tag is not None and str(tag) not in ("", "!"):
            self._problems.append(
                Problem(f"tag {_shown(str(tag))} is not allowed; values are what they are", line, column)
            )
        node: Node
        inner = 0
        if kind == "Scalar":
            node = self._scalar(event, line, column)
        elif kind == "SequenceStart":
            node = listing = Listing(line, column)
            while (following := self._next())[0] != "SequenceEnd":
                item, deep = self._node(*following, depth=depth + 1)
                listing.items.append(item)
                inner = max(inner, deep)
        else:
            node = table = Table(line, column)
            while (following := self._next())[0] != "MappingEnd":
                key, _ = self._node(*following, depth=depth + 1)
                value, deep = self._node(*self._next(), depth=depth + 1)
                inner = max(inner, deep)
                self._put(table, key, value)
        if event.anchor:
            self._anchors[str(event.anchor)] = node, self._count - before, inner + 1
        return node, inner + 1

    def _counted(self, more: int, line: int, column: int) -> None:
        self._count += more
        if self._count > MOST_NODES:
            what = f"the document stands for more than {MOST_NODES} values, those behind aliases included"
            raise Unreadable(Problem(what, line, column))

    def _alias(self, name: str, line: int, column: int, depth: int) -> tuple[Node, int]:
        known = self._anchors.get(str(name))
        if known is None:  # also inside of itself: an anchor is known once it has ended
            raise Unreadable(Problem(f"there is no anchor {_shown(str(name))} before this alias", line, column))
        node, size, deep = known
        self._counted(size, line, column)
        if depth + deep > DEEPEST:
            raise Unreadable(Problem(f"behind this alias lie more than {DEEPEST} levels", line, column))
        return node, deep

    def _put(self, table: Table, key: Node, value: Node) -> None:
        if not isinstance(key, Scalar):
            self._problems.append(Problem("a key is text, not a list or a mapping", key.line, key.column))
            return
        if key.text == _MERGE and not key.style:
            what = "`<<` does not merge here; write the keys, or use an alias for the whole value"
            self._problems.append(Problem(what, key.line, key.column))
            return
        if key.text in table.items:
            first = table.items[key.text][0]
            what = f"key {_shown(key.text)} is there twice; the first is in line {first.line}"
            self._problems.append(Problem(what, key.line, key.column))
            return
        table.items[key.text] = key, value

    def _scalar(self, event: Any, line: int, column: int) -> Scalar:
        text, style = str(event.value), str(event.style or "")
        if not text.isascii():
            try:
                # JSON writes what lies beyond 16 bits as two halves.
                text = text.encode("utf-16", "surrogatepass").decode("utf-16")
            except UnicodeDecodeError:
                self._problems.append(Problem("this is no valid text (a lone surrogate)", line, column))
                text = text.encode("utf-8", "replace").decode()
        return Scalar(line, column, text if style else resolve(text), text, style)


def resolve(text: str) -> Any:
    """What a plain word means: null, a boolean, a number, else itself."""
    if text in _WORDS:
        return _WORDS[text]
    if _INTEGER.fullmatch(text):
        return int(text)
    if _OTHER_BASE.fullmatch(text):
        return int(text, 0)
    if _FLOAT.fullmatch(text) and len(text) < 40:  # noqa: PLR2004 - more digits than a float has
        value = float(text)
        return value if abs(value) < float("inf") else text
    return text


def _shown(text: str) -> str:
    return repr(text if len(text) <= 60 else text[:59] + "…")  # noqa: PLR2004 - a line
