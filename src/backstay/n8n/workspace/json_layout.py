"""Detect and reproduce the layout of a JSON file, so that a rewritten file differs only in the changed data."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass, fields
from typing import Any, Self

from backstay.errors import BadWorkflow
from backstay.n8n.json_types import is_list, is_mapping

BOM = "\ufeff"
#: Escapes like JSON.stringify: control characters, quotes, backslashes and lone surrogates.
_PLAIN = json.JSONEncoder(ensure_ascii=False).encode
_ASCII = json.JSONEncoder(ensure_ascii=True).encode
_HALF = re.compile("[\ud800-\udfff]")
_INDENT = re.compile(r"\n([ \t]+)\S")


class NumberLiteral(float):
    """A number that keeps its spelling in the file: `1.0` and `1e3` are written as they were read."""

    text: str

    def __new__(cls, text: str) -> Self:
        made = super().__new__(cls, text)
        made.text = text
        return made


@dataclass(frozen=True, slots=True)
class Layout:
    """How a JSON file is written: indentation (None: on one line), separators, escaping, line ends, and the text before
    and after the document.
    """

    indent: str | None = "  "
    comma: str = ","
    colon: str = ": "
    ascii_only: bool = False
    newline: str = "\n"
    before: str = ""
    after: str = "\n"

    def write(self, data: Any) -> str:
        """Return the text of the whole file."""
        text = "".join(self._pieces(data, "\n"))
        if self.newline != "\n":
            text = text.replace("\n", self.newline)
        return f"{self.before}{text}{self.after}"

    def _pieces(self, data: Any, line: str) -> list[str]:
        if is_mapping(data):
            opening, closing = "{", "}"
            entries = [(self._scalar(key) + self.colon, item) for key, item in data.items()]
        elif is_list(data):
            opening, closing = "[", "]"
            entries = [("", item) for item in data]
        else:
            return [self._scalar(data)]
        if not entries:
            return [opening + closing]
        inner = line if self.indent is None else line + self.indent
        gap = "" if self.indent is None else inner
        between = self.comma + gap
        pieces = [opening, gap]
        for number, (key, item) in enumerate(entries):
            if number:
                pieces.append(between)
            pieces.append(key)
            pieces += self._pieces(item, inner)
        pieces += ["" if self.indent is None else line, closing]
        return pieces

    def _scalar(self, data: Any) -> str:
        if isinstance(data, NumberLiteral):
            return data.text
        if not isinstance(data, str):
            return json.dumps(data, allow_nan=False)
        if self.ascii_only:
            return _ASCII(data)
        text = _PLAIN(data)
        return _HALF.sub(lambda half: f"\\u{ord(half[0]):04x}", text)


@dataclass(frozen=True, slots=True)
class Verbatim(Layout):
    """The layout of a file whose text cannot be reproduced from the options of `Layout`. Unchanged data is written as
    the original text. Changed data is written with the options that come closest to it.
    """

    text: str = ""
    plain: str = ""

    @classmethod
    def of(cls, layout: Layout, text: str, data: Any) -> Self:
        same = {each.name: getattr(layout, each.name) for each in fields(Layout)}
        return cls(**same, text=text, plain=Layout.write(layout, data))

    def write(self, data: Any) -> str:
        plain = Layout.write(self, data)
        return self.text if plain == self.plain else plain


def read(text: str, source: str) -> tuple[Any, Layout, bool]:
    """Parse a JSON text. Return the data, its layout, and whether a `Layout` reproduces the text exactly."""
    before = BOM if text.startswith(BOM) else ""
    body = text[len(before) :]
    try:
        data = json.loads(
            body, object_pairs_hook=_table, parse_float=_number, parse_int=_integer, parse_constant=_no_number
        )
    except json.JSONDecodeError as error:
        raise BadWorkflow(error.msg, source=source, line=error.lineno, column=error.colno) from error
    except RecursionError as error:
        raise BadWorkflow("the file is nested too deeply", source=source) from error
    except ValueError as error:
        raise BadWorkflow(str(error), source=source) from error
    layout = _layout(body, before)
    exact = layout.write(data) == text
    return data, layout if exact else Verbatim.of(layout, text, data), exact


def _layout(body: str, before: str) -> Layout:
    newline = "\r\n" if "\r\n" in body else "\n"
    core = body.rstrip()
    head = before + body[: len(body) - len(body.lstrip())]
    after = body[len(core) :]
    core = core.lstrip().replace("\r\n", "\n")
    indented = _INDENT.search(core)
    ascii_only = core.isascii() and re.search(r"\\u(?!00[01])[0-9a-f]{4}", core) is not None
    if indented:
        colon = ": " if re.search(r'\n\s*"(?:\\.|[^"\\])*": ', core) else ":"
        return Layout(indented[1], ",", colon, ascii_only, newline, head, after)
    spaced = re.match(r'\{"(?:\\.|[^"\\])*": ', core) is not None
    comma = ", " if spaced and re.search(r', "', core) else ","
    return Layout(None, comma, ": " if spaced else ":", ascii_only, newline, head, after)


def _table(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    made = dict(pairs)
    if len(made) < len(pairs):
        seen: set[str] = set()
        twice = next(key for key, _ in pairs if key in seen or seen.add(key))  # type: ignore[func-returns-value]  # set.add returns None
        raise ValueError(f"the key {twice!r} appears twice in one object")
    return made


def _number(text: str) -> float:
    number = NumberLiteral(text)
    if number in (float("inf"), float("-inf")):
        raise ValueError(f"the number {text} is too large")
    return number


def _integer(text: str) -> int | float:
    return NumberLiteral(text) if text == "-0" else int(text)


def _no_number(text: str) -> float:
    raise ValueError(f"{text} is not valid JSON")
