"""n8n parameter strings: literal text, or expressions that n8n evaluates in each run."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from backstay.n8n.analysis.javascript import JavaScriptSyntaxError, Token, tokenize
from backstay.n8n.json_types import is_list, is_mapping

PLACEHOLDER = re.compile(r"\{\{\s*@:(\w+):([^{}]*)\}\}")
WORKFLOW_ID = re.compile(r"\{\{\s*@:env:workflows\.([\w-]+)\.id\s*\}\}")
_CODE = re.compile(r"\{\{(?!\s*@:)(.*?)\}\}", re.DOTALL)
_QUOTED = re.compile(r"""\{\{\s*(?:'([^'\\]*)'|"([^"\\]*)")\s*\}\}""")


@dataclass(frozen=True, slots=True)
class ParameterText:
    """One parameter value as n8n reads it. `literal` is None when n8n computes the value."""

    raw: str
    literal: str | None

    @classmethod
    def of(cls, value: Any) -> ParameterText:
        raw = value if isinstance(value, str) else "" if value is None else str(value)
        if not raw.startswith("="):
            return cls(raw, raw)
        body = raw[1:]
        quoted = _QUOTED.fullmatch(body.strip())
        if quoted:
            return cls(raw, quoted[1] if quoted[1] is not None else quoted[2])
        return cls(raw, None if _CODE.search(body) else body)

    @property
    def canonical(self) -> str:
        """A key that is equal for different spellings of one value, such as `orders` and `={{ 'orders' }}`."""
        return f"text:{self.literal}" if self.literal is not None else "code:" + re.sub(r"\s+", "", self.raw)

    @property
    def display(self) -> str:
        """The value as messages show it."""
        return repr(self.literal) if self.literal is not None else self.raw.removeprefix("=").strip()


def expression_code(value: str) -> Iterator[str]:
    """Yield the JavaScript between an expression's braces; literal text yields nothing."""
    if value.startswith("="):
        for found in _CODE.finditer(value):
            yield found[1]


def expression_tokens(value: str) -> list[Token]:
    """Return an expression's tokens without comments; an empty list when it cannot be tokenized."""
    found: list[Token] = []
    for code in expression_code(value):
        try:
            found += [token for token in tokenize(code) if token.kind != "comment"]
        except JavaScriptSyntaxError:
            return []
    return found


def has_dangling_path(value: str) -> bool:
    """Whether the expression has a member access without an object, such as `'a' + .id`. Typically the user wrote
    `$json.id` in double quotes, and the shell expanded `$json` to nothing.
    """
    for code in expression_code(PLACEHOLDER.sub("_", value)):
        try:
            found = [token for token in tokenize(code) if token.kind != "comment"]
        except JavaScriptSyntaxError:
            continue
        for at, token in enumerate(found):
            before = found[at - 1] if at else None
            nothing = before is None or (before.kind == "mark" and before.text not in (")", "]", "}"))
            if token.kind == "mark" and token.text in (".", "?.") and nothing:
                return True
    return False


def find_referenced_nodes(code: list[Token]) -> Iterator[tuple[str, int]]:
    """Yield each node that the code reads by name, with the line: `$('A')`, `$node["A"]`, `$node.A`, `$items("A")`."""
    for at, token in enumerate(code[:-2]):
        if token.kind != "name" or (at and code[at - 1].text in (".", "?.")):
            continue
        mark, named = code[at + 1], code[at + 2]
        called = token.text in ("$", "$items") and mark.text == "("
        if (called or (token.text == "$node" and mark.text == "[")) and named.kind == "string":
            # The name in `$('a' + b)` is computed, so it cannot be resolved here.
            if at + 3 < len(code) and code[at + 3].text in (")", "]", ","):
                yield re.sub(r"\\(.)", r"\1", named.value), token.line
        elif token.text == "$node" and mark.text == "." and named.kind == "name":
            yield named.text, token.line


def iter_strings(data: Any, path: str = "") -> Iterator[tuple[str, str]]:
    """Yield every string in nested data, including keys, with its path. Iterative, because files may be nested deeper
    than the recursion limit.
    """
    todo: list[tuple[str, Any]] = [(path, data)]
    while todo:
        at, item = todo.pop()
        if isinstance(item, str):
            yield at, item
        elif is_mapping(item):
            todo.extend((join_path(at, str(key)), inner) for key, inner in reversed(item.items()))
        elif is_list(item):
            todo.extend((f"{at}[{place}]", inner) for place, inner in reversed(list(enumerate(item))))


def join_path(path: str, key: str) -> str:
    plain = re.fullmatch(r"[\w$@-]+", key) is not None
    return (f"{path}.{key}" if path else key) if plain else f"{path}[{key!r}]"
