"""Parse YAML into nodes with positions, and into plain data. Rejects anchors, aliases, tags and merge keys, because
a shared value cannot be edited in one place.
"""

from __future__ import annotations

import re
from typing import Any

from backstay.errors import ConfigError, WorkspaceError
from backstay.n8n.json_types import is_mapping
from backstay.n8n.workspace.json_layout import NumberLiteral

DEEPEST = 50

#: Finds text that may contain an anchor, an alias or a tag: each needs one of these characters.
_SHARING = re.compile(r"[&*!]")
_INTEGER = re.compile(r"-?(?:0|[1-9][0-9]{0,17})")
_FLOAT = re.compile(r"-?(?:0|[1-9][0-9]*)(?:\.[0-9]+)?(?:[eE][-+]?[0-9]{1,3})?")


def compose(text: str, source: str) -> Any:
    """Parse the text into a tree of nodes. Raise WorkspaceError with line and column."""
    try:
        from ruamel.yaml import YAML
        from ruamel.yaml.error import MarkedYAMLError, YAMLError
    except ImportError:
        raise ConfigError("reading a workspace's settings needs a YAML parser: pip install 'backstay[n8n]'") from None
    yaml: Any = YAML(typ="rt", pure=True)
    try:
        events: Any = YAML(typ="rt", pure=True)
        for event in events.parse(text) if _SHARING.search(text) else ():
            _refuse_sharing(event, source)
        return yaml.compose(text)
    except MarkedYAMLError as error:
        marked: Any = error
        mark = marked.problem_mark or marked.context_mark
        where = f", line {mark.line + 1}, column {mark.column + 1}" if mark else ""
        what = " ".join(str(marked.problem or marked.context or "it cannot be parsed").split())
        lines = [*text.splitlines(), ""]
        if mark and "\t" in lines[min(mark.line, len(lines) - 1)][: mark.column + 1]:
            what = "tab character found; YAML must be indented with spaces"
        elif "another document" in what:
            what = "a second document begins (---); settings must be one document"
        raise WorkspaceError(f"{source}{where}: {what}") from None
    except YAMLError as error:
        raise WorkspaceError(f"{source}: not valid YAML: {str(error).splitlines()[0]}") from None
    except (ValueError, RecursionError, AssertionError, IndexError, TypeError, AttributeError) as error:
        # For some invalid files, ruamel.yaml raises one of these exceptions instead of a YAMLError.
        raise WorkspaceError(f"{source}: not valid YAML: {type(error).__name__}: {error}") from None


def _refuse_sharing(event: Any, source: str) -> None:
    line = event.start_mark.line + 1
    if getattr(event, "anchor", None):
        raise WorkspaceError(
            f"{source}, line {line}: anchor or alias ({event.anchor}) found; a value that appears in two places"
            " cannot be changed in one: write the value out"
        )
    tag = getattr(event, "tag", None)
    if tag is not None:
        raise WorkspaceError(f"{source}, line {line}: tag ({tag}) found; settings must be plain values")


def plain(node: Any, source: str, depth: int = 0) -> Any:
    """Return a node as plain data. Raise WorkspaceError for duplicate keys, keys that are not strings, and merge
    keys.
    """
    if node is None:
        return {}
    line = node.start_mark.line + 1
    if depth > DEEPEST:
        raise WorkspaceError(f"{source}, line {line}: the file is nested too deeply")
    if node.id == "scalar":
        try:
            return _value(node)
        except UnicodeDecodeError:
            raise WorkspaceError(f"{source}, line {line}: lone surrogate found") from None
    if node.id == "sequence":
        return [plain(item, source, depth + 1) for item in node.value]
    made: dict[str, Any] = {}
    for key, value in node.value:
        if key.id != "scalar":
            raise WorkspaceError(f"{source}, line {line}: mapping keys must be strings")
        if key.value in made:
            raise WorkspaceError(f"{source}, line {key.start_mark.line + 1}: the key {key.value!r} appears twice")
        if key.value == "<<":
            raise WorkspaceError(f"{source}, line {line}: merge key (<<) found; write the values out")
        made[key.value] = plain(value, source, depth + 1)
    return made


def _value(node: Any) -> Any:
    """Return a scalar. Only JSON numbers and booleans are converted, so ids like 0123 or 1e5 stay strings."""
    text: str = node.value
    if node.style:
        # A quoted text may be copied from JSON, where a character above U+FFFF can be written as two escapes (a
        # surrogate pair). Join the two halves to one character.
        return text.encode("utf-16", "surrogatepass").decode("utf-16") if not text.isascii() else text
    if text in ("", "~", "null"):
        return None
    if text in ("true", "false"):
        return text == "true"
    if _INTEGER.fullmatch(text):
        return int(text)
    if "." in text and _FLOAT.fullmatch(text):
        return NumberLiteral(text)
    return text


def table(data: Any, source: str) -> dict[str, Any]:
    if data is None:
        return {}
    if not is_mapping(data):
        raise WorkspaceError(f"{source}: the file must be a mapping of keys to values")
    return data


def entries_of(node: Any) -> list[tuple[Any, Any]]:
    return node.value if node is not None and node.id == "mapping" else []


def contents(node: Any) -> list[Any]:
    return [] if node.id == "scalar" else node.value


def is_block(node: Any) -> bool:
    return node.id != "scalar" and not node.flow_style


def end_of(key: Any, node: Any) -> int:
    """Return the index after a node's content, without trailing comments and blank lines."""
    if node.id == "scalar":
        if node.start_mark.index == node.end_mark.index:
            return int(key.end_mark.index)
        # A block scalar's end mark is after its last line end.
        return int(node.end_mark.index) - (2 if node.style in ("|", ">") else 0)
    if node.flow_style or not node.value:
        return int(node.end_mark.index)
    last = node.value[-1]
    return end_of(*last) if node.id == "mapping" else end_of(last, last)
