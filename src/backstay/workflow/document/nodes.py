"""Parse YAML and JSON into a tree of nodes with positions. The YAML library supplies the parser events; this module
resolves scalars itself.

`on` is text, not a boolean as in YAML 1.1, and a number keeps its source text, so `3.10` stays `3.10`. The expansion of
aliases is bounded (billion-laughs attack); tags and duplicate keys are errors.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from backstay.errors import ConfigError, Problem
from backstay.workflow.document.effort import Effort, UnreadableDocument

#: Limits of a document: bytes, nodes and characters (each use of an alias counts all its nodes and characters again),
#: and nesting depth.
LARGEST, MOST_NODES, MOST_TEXT, DEEPEST = 512 * 1024, 50_000, 1024 * 1024, 40
#: Problems after which reading stops: each one costs time and memory.
MOST_FOUND = 500
TOO_MANY = f"there are more than {MOST_FOUND} problems; the rest of the document was not read"

_INTEGER = re.compile(r"[-+]?\d{1,18}")
_OTHER_BASE = re.compile(r"0o[0-7]{1,20}|0x[0-9a-fA-F]{1,15}")
_FLOAT = re.compile(r"[-+]?(?:\.\d+|\d+(?:\.\d*)?)(?:[eE][-+]?\d{1,3})?")
_WORDS: dict[str, Any] = {"": None, "~": None}
for _word, _value in (("null", None), ("true", True), ("false", False)):
    for _spelling in (_word, _word.capitalize(), _word.upper()):
        _WORDS[_spelling] = _value
_MERGE = "<<"
#: The largest number of characters of the document that a message quotes.
LONGEST_QUOTE = 60


def quote(text: str) -> str:
    return repr(text if len(text) <= LONGEST_QUOTE else text[: LONGEST_QUOTE - 1] + "…")


def problem_at(message: str, text: str, offset: int) -> Problem:
    """Make a problem with the line and column of the character at `offset` in the document `text`."""
    before = text[:offset]
    return Problem(message, before.count("\n") + 1, offset - (before.rfind("\n") + 1) + 1)


@dataclass(slots=True)
class DocumentNode:
    """A node of a document with its position. Lines and columns count from 1."""

    line: int
    column: int


@dataclass(slots=True)
class ScalarNode(DocumentNode):
    value: Any
    #: The scalar's text before `value` was resolved from it: "3.10" for the number 3.1.
    text: str
    #: How the scalar is written: "'" or '"' for quotes, "|" or ">" for a block; "" for a plain (unquoted) scalar.
    style: str = ""


@dataclass(slots=True)
class ListNode(DocumentNode):
    items: list[DocumentNode] = field(default_factory=list[DocumentNode])


@dataclass(slots=True)
class MappingNode(DocumentNode):
    """A mapping with text keys, in document order. Each key comes with its own node, for its position."""

    items: dict[str, tuple[ScalarNode, DocumentNode]] = field(
        default_factory=dict[str, "tuple[ScalarNode, DocumentNode]"]
    )


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


def compose(text: str, problems: list[Problem], effort: Effort | None = None) -> DocumentNode:
    """Parse one document into a tree. Adds recoverable problems to `problems`; raises UnreadableDocument for others."""
    try:
        from ruamel.yaml import YAML
        from ruamel.yaml.error import MarkedYAMLError, YAMLError
    except ImportError:
        raise ConfigError("workflows in YAML or JSON need a YAML parser: pip install 'backstay[yaml]'") from None
    yaml: Any = YAML(typ="safe", pure=True)
    composer = _Composer(yaml.parse(text), problems, effort or Effort())
    try:
        return composer.build()
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
        # The YAML parser itself crashes on some invalid documents, for example on an escape of an invalid character.
        raise UnreadableDocument(Problem(f"invalid YAML: {type(error).__name__}: {error}")) from None


class _Composer:
    """Builds the tree from parser events one at a time, and stops at the first exceeded limit."""

    def __init__(self, events: Iterator[Any], problems: list[Problem], effort: Effort) -> None:
        self._events = events
        self._problems = problems
        self._effort = effort
        self._count = self._characters = 0
        #: By anchor: its node, and the number of nodes, of characters and of levels of that node's subtree.
        self._anchors: dict[str, tuple[DocumentNode, int, int, int]] = {}

    def _next(self) -> tuple[str, Any, int, int]:
        event = next(self._events)
        kind = type(event).__name__.removesuffix("Event")
        return kind, event, event.start_mark.line + 1, event.start_mark.column + 1

    def build(self) -> DocumentNode:
        self._next()  # StreamStart
        kind, _, line, column = self._next()
        if kind != "DocumentStart":
            raise UnreadableDocument(Problem("the document is empty", line, column))
        node, _ = self._build_node(*self._next(), depth=1)
        self._next()  # DocumentEnd
        kind, _, line, column = self._next()
        if kind != "StreamEnd":
            raise UnreadableDocument(
                Problem("the file has a second document; put each workflow in its own file", line, column)
            )
        return node

    def _build_node(self, kind: str, event: Any, line: int, column: int, *, depth: int) -> tuple[DocumentNode, int]:
        """Build a node from an event and the events that follow it. Returns the node and the levels of its subtree."""
        if depth > DEEPEST:
            raise UnreadableDocument(Problem(f"nested more than {DEEPEST} levels deep", line, column))
        if kind == "Alias":
            return self._expand_alias(event.anchor, line, column, depth)
        before = self._count, self._characters
        self._count_nodes(1, len(event.value) if kind == "Scalar" else 0, line, column)
        tag = getattr(event, "tag", None)
        if tag is not None and str(tag) not in ("", "!"):
            self._add_problem(f"tag {quote(str(tag))} is not allowed; write the value without a tag", line, column)
        node: DocumentNode
        inner = 0
        if kind == "Scalar":
            node = self._build_scalar(event, line, column)
        elif kind == "SequenceStart":
            node = listing = ListNode(line, column)
            while (following := self._next())[0] != "SequenceEnd":
                item, deep = self._build_node(*following, depth=depth + 1)
                listing.items.append(item)
                inner = max(inner, deep)
        else:
            node = table = MappingNode(line, column)
            while (following := self._next())[0] != "MappingEnd":
                key, _ = self._build_node(*following, depth=depth + 1)
                value, deep = self._build_node(*self._next(), depth=depth + 1)
                inner = max(inner, deep)
                self._add_entry(table, key, value)
        if event.anchor:
            size = self._count - before[0], self._characters - before[1]
            self._anchors[str(event.anchor)] = node, *size, inner + 1
        return node, inner + 1

    def _count_nodes(self, nodes: int, characters: int, line: int, column: int) -> None:
        self._effort.spend(nodes, line, column)
        self._count += nodes
        self._characters += characters
        if self._count > MOST_NODES:
            what = f"the document has more than {MOST_NODES} values, with aliases expanded"
            raise UnreadableDocument(Problem(what, line, column))
        if self._characters > MOST_TEXT:
            what = f"the document has more than {MOST_TEXT} characters, with aliases expanded"
            raise UnreadableDocument(Problem(what, line, column))

    def _add_problem(self, message: str, line: int, column: int) -> None:
        if len(self._problems) >= MOST_FOUND:
            raise UnreadableDocument(Problem(TOO_MANY, line, column))
        self._problems.append(Problem(message, line, column))

    def _expand_alias(self, name: str, line: int, column: int, depth: int) -> tuple[DocumentNode, int]:
        known = self._anchors.get(str(name))
        # An anchor is registered once its node is complete, so an alias inside that node (a cycle) is unknown, too.
        if known is None:
            raise UnreadableDocument(Problem(f"no anchor {quote(str(name))} precedes this alias", line, column))
        node, nodes, characters, deep = known
        self._count_nodes(nodes, characters, line, column)
        if depth + deep > DEEPEST:
            raise UnreadableDocument(Problem(f"this alias nests more than {DEEPEST} levels deep", line, column))
        return node, deep

    def _add_entry(self, table: MappingNode, key: DocumentNode, value: DocumentNode) -> None:
        if not isinstance(key, ScalarNode):
            self._add_problem("a key must be text, not a list or a mapping", key.line, key.column)
            return
        if key.text == _MERGE and not key.style:
            what = "`<<` (merge) is not supported; write the keys, or use an alias for the whole value"
            self._add_problem(what, key.line, key.column)
            return
        if key.text in table.items:
            first = table.items[key.text][0]
            what = f"key {quote(key.text)} is defined twice; the first is in line {first.line}"
            self._add_problem(what, key.line, key.column)
            return
        table.items[key.text] = key, value

    def _build_scalar(self, event: Any, line: int, column: int) -> ScalarNode:
        text, style = str(event.value), str(event.style or "")
        if not text.isascii():
            try:
                # JSON escapes characters beyond U+FFFF as surrogate pairs.
                text = text.encode("utf-16", "surrogatepass").decode("utf-16")
            except UnicodeDecodeError:
                self._add_problem("invalid text: a lone surrogate", line, column)
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
