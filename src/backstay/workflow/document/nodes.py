"""Parse YAML and JSON into a tree of nodes with positions, from parser events; scalars are resolved here.

`on` is never a boolean, and a number keeps its source text, so `3.10` stays `3.10`. The expansion of aliases is bounded
(billion-laughs attack); tags and duplicate keys are errors.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from backstay.errors import ConfigError, Problem
from backstay.workflow.document.problems import problem_at, quote

#: Limits of a document: bytes, nodes (each use of an alias counts all its nodes again), and nesting depth.
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
    """A node of a document with its position. Lines and columns count from 1."""

    line: int
    column: int


@dataclass(slots=True)
class ScalarNode(Node):
    value: Any
    #: The source text.
    text: str
    #: "'", '"', "|", ">" or "" for plain ones.
    style: str = ""


@dataclass(slots=True)
class ListNode(Node):
    items: list[Node] = field(default_factory=list[Node])


@dataclass(slots=True)
class MappingNode(Node):
    """A mapping in document order, with text keys."""

    items: dict[str, tuple[ScalarNode, Node]] = field(default_factory=dict[str, "tuple[ScalarNode, Node]"])


class UnreadableDocument(Exception):
    """Parsing cannot continue after this problem."""

    def __init__(self, problem: Problem) -> None:
        super().__init__(str(problem))
        self.problem = problem


def decode(raw: bytes | str) -> str:
    """Decode a document to text. Raises UnreadableDocument."""
    if isinstance(raw, str):
        try:
            size = len(raw.encode())
        except UnicodeEncodeError as error:
            raise UnreadableDocument(problem_at("invalid text: a lone surrogate", raw, error.start)) from None
        text = raw
    else:
        size = len(raw)
        text = ""
    if size > LARGEST:
        raise UnreadableDocument(Problem(f"the document has {size} bytes, but a workflow may have at most {LARGEST}"))
    if not isinstance(raw, str):
        try:
            text = raw.decode("utf-8")
        except UnicodeDecodeError as error:
            before = raw[: error.start].decode("utf-8", errors="replace")
            message = f"byte {raw[error.start]:#04x} is not UTF-8; save the file as UTF-8"
            raise UnreadableDocument(problem_at(message, before, len(before))) from None
    return text.removeprefix("\ufeff")


def compose(text: str, problems: list[Problem]) -> Node:
    """Parse one document into a tree. Adds recoverable problems to `problems`; raises UnreadableDocument for others."""
    try:
        from ruamel.yaml import YAML
        from ruamel.yaml.error import MarkedYAMLError, YAMLError
    except ImportError:
        raise ConfigError("workflows in YAML or JSON need a YAML parser: pip install 'backstay[yaml]'") from None
    yaml: Any = YAML(typ="safe", pure=True)
    composer = _Composer(yaml.parse(text), problems)
    try:
        return composer.document()
    except MarkedYAMLError as error:
        marked: Any = error
        mark = marked.problem_mark or marked.context_mark
        what = " ".join(str(marked.problem or marked.context or "it cannot be read").split())
        raise UnreadableDocument(
            Problem(f"invalid YAML: {what}", mark.line + 1, mark.column + 1) if mark else Problem(what)
        ) from None
    except YAMLError as error:
        place = getattr(error, "position", None)
        what = f"invalid YAML: {str(error).splitlines()[0]}"
        raise UnreadableDocument(problem_at(what, text, place) if isinstance(place, int) else Problem(what)) from None
    except (ValueError, OverflowError, RecursionError, AssertionError, IndexError, TypeError, AttributeError) as error:
        # Crashes of the parser itself, for example on an escape of an invalid character.
        raise UnreadableDocument(Problem(f"invalid YAML: {type(error).__name__}: {error}")) from None


class _Composer:
    """Builds the tree from parser events one at a time, and stops at the first exceeded limit."""

    def __init__(self, events: Iterator[Any], problems: list[Problem]) -> None:
        self._events = events
        self._problems = problems
        self._count = 0
        #: By anchor: the node, the number of its nodes, and its depth.
        self._anchors: dict[str, tuple[Node, int, int]] = {}

    def _next(self) -> tuple[str, Any, int, int]:
        event = next(self._events)
        kind = type(event).__name__.removesuffix("Event")
        return kind, event, event.start_mark.line + 1, event.start_mark.column + 1

    def document(self) -> Node:
        self._next()  # StreamStart
        kind, _, line, column = self._next()
        if kind != "DocumentStart":
            raise UnreadableDocument(Problem("the document is empty", line, column))
        node, _ = self._node(*self._next(), depth=1)
        self._next()  # DocumentEnd
        kind, _, line, column = self._next()
        if kind != "StreamEnd":
            raise UnreadableDocument(
                Problem("the file has a second document; put each workflow in its own file", line, column)
            )
        return node

    def _node(self, kind: str, event: Any, line: int, column: int, *, depth: int) -> tuple[Node, int]:
        """Build a node; returns it with its depth."""
        if depth > DEEPEST:
            raise UnreadableDocument(Problem(f"nested more than {DEEPEST} levels deep", line, column))
        if kind == "Alias":
            return self._alias(event.anchor, line, column, depth)
        before = self._count
        self._count_nodes(1, line, column)
        tag = getattr(event, "tag", None)
        if tag is not None and str(tag) not in ("", "!"):
            self._problems.append(
                Problem(f"tag {quote(str(tag))} is not allowed; write the value without a tag", line, column)
            )
        node: Node
        inner = 0
        if kind == "Scalar":
            node = self._scalar(event, line, column)
        elif kind == "SequenceStart":
            node = listing = ListNode(line, column)
            while (following := self._next())[0] != "SequenceEnd":
                item, deep = self._node(*following, depth=depth + 1)
                listing.items.append(item)
                inner = max(inner, deep)
        else:
            node = table = MappingNode(line, column)
            while (following := self._next())[0] != "MappingEnd":
                key, _ = self._node(*following, depth=depth + 1)
                value, deep = self._node(*self._next(), depth=depth + 1)
                inner = max(inner, deep)
                self._add_entry(table, key, value)
        if event.anchor:
            self._anchors[str(event.anchor)] = node, self._count - before, inner + 1
        return node, inner + 1

    def _count_nodes(self, more: int, line: int, column: int) -> None:
        self._count += more
        if self._count > MOST_NODES:
            what = f"the document has more than {MOST_NODES} values, with aliases expanded"
            raise UnreadableDocument(Problem(what, line, column))

    def _alias(self, name: str, line: int, column: int, depth: int) -> tuple[Node, int]:
        known = self._anchors.get(str(name))
        if known is None:  # also for an alias inside its own anchor, which is registered at its end
            raise UnreadableDocument(Problem(f"no anchor {quote(str(name))} precedes this alias", line, column))
        node, size, deep = known
        self._count_nodes(size, line, column)
        if depth + deep > DEEPEST:
            raise UnreadableDocument(Problem(f"this alias nests more than {DEEPEST} levels deep", line, column))
        return node, deep

    def _add_entry(self, table: MappingNode, key: Node, value: Node) -> None:
        if not isinstance(key, ScalarNode):
            self._problems.append(Problem("a key must be text, not a list or a mapping", key.line, key.column))
            return
        if key.text == _MERGE and not key.style:
            what = "`<<` (merge) is not supported; write the keys, or use an alias for the whole value"
            self._problems.append(Problem(what, key.line, key.column))
            return
        if key.text in table.items:
            first = table.items[key.text][0]
            what = f"key {quote(key.text)} is defined twice; the first is in line {first.line}"
            self._problems.append(Problem(what, key.line, key.column))
            return
        table.items[key.text] = key, value

    def _scalar(self, event: Any, line: int, column: int) -> ScalarNode:
        text, style = str(event.value), str(event.style or "")
        if not text.isascii():
            try:
                # JSON escapes characters beyond U+FFFF as surrogate pairs.
                text = text.encode("utf-16", "surrogatepass").decode("utf-16")
            except UnicodeDecodeError:
                self._problems.append(Problem("invalid text: a lone surrogate", line, column))
                text = text.encode("utf-8", "replace").decode()
        return ScalarNode(line, column, text if style else resolve_scalar(text), text, style)


def resolve_scalar(text: str) -> Any:
    """Resolve a plain (unquoted) scalar to null, a boolean or a number, else to its text."""
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
