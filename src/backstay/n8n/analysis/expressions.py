"""What the strings of a workflow say: fixed text, or an expression that n8n computes at each run."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from backstay.n8n.analysis.javascript import Token, Unreadable, tokens
from backstay.n8n.json_types import is_list, is_table

PLACEHOLDER = re.compile(r"\{\{\s*@:(\w+):([^{}]*)\}\}")
WORKFLOW_ID = re.compile(r"\{\{\s*@:env:workflows\.([\w-]+)\.id\s*\}\}")
_CODE = re.compile(r"\{\{(?!\s*@:)(.*?)\}\}", re.DOTALL)
_QUOTED = re.compile(r"""\{\{\s*(?:'([^'\\]*)'|"([^"\\]*)")\s*\}\}""")


@dataclass(frozen=True, slots=True)
class Text:
    """One value as n8n reads it. `fixed` is None where it is computed."""

    raw: str
    fixed: str | None

    @classmethod
    def of(cls, value: Any) -> Text:
        raw = value if isinstance(value, str) else "" if value is None else str(value)
        if not raw.startswith("="):
            return cls(raw, raw)
        body = raw[1:]
        quoted = _QUOTED.fullmatch(body.strip())
        if quoted:
            return cls(raw, quoted[1] if quoted[1] is not None else quoted[2])
        return cls(raw, None if _CODE.search(body) else body)

    @property
    def same(self) -> str:
        """Equal for two spellings of one thing."""
        return f"text:{self.fixed}" if self.fixed is not None else "code:" + re.sub(r"\s+", "", self.raw)

    @property
    def shown(self) -> str:
        return repr(self.fixed) if self.fixed is not None else self.raw.removeprefix("=").strip()


def code_of(value: str) -> Iterator[str]:
    """The JavaScript between the braces of an expression; nothing for fixed text."""
    if value.startswith("="):
        for found in _CODE.finditer(value):
            yield found[1]


def words(value: str) -> list[Token]:
    """All tokens of an expression, without comments; none where it cannot be read."""
    found: list[Token] = []
    for code in code_of(value):
        try:
            found += [token for token in tokens(code) if token.kind != "comment"]
        except Unreadable:
            return []
    return found


def begins_with_nothing(value: str) -> bool:
    """Whether an expression has a path without an object before it: `'a' + .id`, of which a shell took `$json`."""
    for code in code_of(PLACEHOLDER.sub("_", value)):
        try:
            found = [token for token in tokens(code) if token.kind != "comment"]
        except Unreadable:
            continue
        for at, token in enumerate(found):
            before = found[at - 1] if at else None
            nothing = before is None or (before.kind == "mark" and before.text not in (")", "]", "}"))
            if token.kind == "mark" and token.text in (".", "?.") and nothing:
                return True
    return False


def named_nodes(code: list[Token]) -> Iterator[tuple[str, int]]:
    """The nodes that code reads by name, and the line: `$('A')`, `$node["A"]`, `$node.A`, `$items("A")`."""
    for at, token in enumerate(code[:-2]):
        if token.kind != "name" or (at and code[at - 1].text in (".", "?.")):
            continue
        mark, named = code[at + 1], code[at + 2]
        called = token.text in ("$", "$items") and mark.text == "("
        if (called or (token.text == "$node" and mark.text == "[")) and named.kind == "string":
            # `$('a' + b)` is computed, and says nothing.
            if at + 3 < len(code) and code[at + 3].text in (")", "]", ","):
                yield re.sub(r"\\(.)", r"\1", named.value), token.line
        elif token.text == "$node" and mark.text == "." and named.kind == "name":
            yield named.text, token.line


def strings_of(data: Any, path: str = "") -> Iterator[tuple[str, str]]:
    """Every string in some data, keys as well, with its path. Not recursive: files may be deep."""
    todo: list[tuple[str, Any]] = [(path, data)]
    while todo:
        at, item = todo.pop()
        if isinstance(item, str):
            yield at, item
        elif is_table(item):
            todo.extend((joined(at, str(key)), inner) for key, inner in reversed(item.items()))
        elif is_list(item):
            todo.extend((f"{at}[{place}]", inner) for place, inner in reversed(list(enumerate(item))))


def joined(path: str, key: str) -> str:
    plain = re.fullmatch(r"[\w$@-]+", key) is not None
    return (f"{path}.{key}" if path else key) if plain else f"{path}[{key!r}]"
