"""YAML as a tree of nodes that know their places, and as plain data. What cannot be changed in one place is refused."""

from __future__ import annotations

import re
from typing import Any

from backstay.errors import ConfigError, WorkspaceError
from backstay.n8n.json_types import is_table
from backstay.n8n.workspace.json_layout import Literal

DEEPEST = 50

#: Without one of these there is neither an anchor nor an alias nor a tag.
_SHARING = re.compile(r"[&*!]")
_INTEGER = re.compile(r"-?(?:0|[1-9][0-9]{0,17})")
_FLOAT = re.compile(r"-?(?:0|[1-9][0-9]*)(?:\.[0-9]+)?(?:[eE][-+]?[0-9]{1,3})?")


def compose(text: str, source: str) -> Any:
    try:
        from ruamel.yaml import YAML
        from ruamel.yaml.error import MarkedYAMLError, YAMLError
    except ImportError:
        raise ConfigError("a workspace's settings need a reader: pip install 'backstay[n8n]'") from None
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
        what = " ".join(str(marked.problem or marked.context or "it cannot be read").split())
        lines = [*text.splitlines(), ""]
        if mark and "\t" in lines[min(mark.line, len(lines) - 1)][: mark.column + 1]:
            what = "there is a tab; YAML is indented with spaces"
        elif "another document" in what:
            what = "a second document begins (---); settings are one"
        raise WorkspaceError(f"{source}{where}: {what}") from None
    except YAMLError as error:
        raise WorkspaceError(f"{source}: this is not YAML: {str(error).splitlines()[0]}") from None
    except (ValueError, RecursionError, AssertionError, IndexError, TypeError, AttributeError) as error:
        # What the parser itself stumbles over.
        raise WorkspaceError(f"{source}: this is not YAML: {type(error).__name__}: {error}") from None


def _refuse_sharing(event: Any, source: str) -> None:
    line = event.start_mark.line + 1
    if getattr(event, "anchor", None):
        raise WorkspaceError(
            f"{source}, line {line}: there is an anchor or alias ({event.anchor}); a value that stands in two places"
            " cannot be changed in one: write it out"
        )
    tag = getattr(event, "tag", None)
    if tag is not None:
        raise WorkspaceError(f"{source}, line {line}: there is a tag ({tag}); settings are plain values")


def plain(node: Any, source: str, depth: int = 0) -> Any:
    if node is None:
        return {}
    line = node.start_mark.line + 1
    if depth > DEEPEST:
        raise WorkspaceError(f"{source}, line {line}: it is nested too deeply")
    if node.id == "scalar":
        try:
            return _value(node)
        except UnicodeDecodeError:
            raise WorkspaceError(f"{source}, line {line}: there is half a character (a lone surrogate)") from None
    if node.id == "sequence":
        return [plain(item, source, depth + 1) for item in node.value]
    made: dict[str, Any] = {}
    for key, value in node.value:
        if key.id != "scalar":
            raise WorkspaceError(f"{source}, line {line}: a key is no text")
        if key.value in made:
            raise WorkspaceError(f"{source}, line {key.start_mark.line + 1}: the key {key.value!r} stands twice")
        if key.value == "<<":
            raise WorkspaceError(f"{source}, line {line}: there is a merge key (<<); write the values out")
        made[key.value] = plain(value, source, depth + 1)
    return made


def _value(node: Any) -> Any:
    """A scalar. Only what JSON, too, would call a number or a truth is one: an id like 0123 or 1e5 stays as it is."""
    text: str = node.value
    if node.style:
        # JSON, too, is YAML, and writes large characters as pairs.
        return text.encode("utf-16", "surrogatepass").decode("utf-16") if not text.isascii() else text
    if text in ("", "~", "null"):
        return None
    if text in ("true", "false"):
        return text == "true"
    if _INTEGER.fullmatch(text):
        return int(text)
    if "." in text and _FLOAT.fullmatch(text):
        return Literal(text)
    return text


def table(data: Any, source: str) -> dict[str, Any]:
    if data is None:
        return {}
    if not is_table(data):
        raise WorkspaceError(f"{source}: it is no table of keys and values")
    return data


def entries_of(node: Any) -> list[tuple[Any, Any]]:
    return node.value if node is not None and node.id == "mapping" else []


def contents(node: Any) -> list[Any]:
    return [] if node.id == "scalar" else node.value


def is_block(node: Any) -> bool:
    return node.id != "scalar" and not node.flow_style


def end_of(key: Any, node: Any) -> int:
    """The last character of what a node says, without the comments and blank lines that follow."""
    if node.id == "scalar":
        if node.start_mark.index == node.end_mark.index:
            return int(key.end_mark.index)
        # That of a text in lines stands behind its last line end.
        return int(node.end_mark.index) - (2 if node.style in ("|", ">") else 0)
    if node.flow_style or not node.value:
        return int(node.end_mark.index)
    last = node.value[-1]
    return end_of(*last) if node.id == "mapping" else end_of(last, last)
