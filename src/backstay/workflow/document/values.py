"""Values of a document, read as what their key wants. Whatever is wrong is noted, with its place; reading goes on."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from typing import Any, TypeVar

from msgspec import Struct

from backstay.errors import BadExpression, Problem
from backstay.job.api.retry import Backoff
from backstay.workflow.document.fields import DURATION, NAME, Field
from backstay.workflow.document.nodes import Listing, Node, Scalar, Table
from backstay.workflow.document.suggestion import meant
from backstay.workflow.expressions.expression import Expression, parse
from backstay.workflow.expressions.interpolation import OPEN, pieces

T = TypeVar("T")

_UNITS = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0}
#: As everywhere: ten years.
_LONGEST = 10 * 365 * 86400.0
_VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
LONGEST_TEXT = 64 * 1024


class Met(Struct, frozen=True):
    """An expression, where it stands, and what may be spoken of there."""

    node: Scalar
    offset: int
    expression: Expression
    roots: tuple[str, ...]
    env: frozenset[str]


class Values:
    """Reads values, and remembers what was wrong and which expressions were met."""

    def __init__(self, text: str) -> None:
        self.problems: list[Problem] = []
        self._lines = text.split("\n")
        self.met: list[Met] = []
        #: What expressions may speak of where we are, and the variables that only this place has.
        self.roots: tuple[str, ...] = ()
        self.own_env: frozenset[str] = frozenset()

    # ── what is wrong ──

    def wrong(self, node: Node, message: str) -> None:
        self.problems.append(Problem(message, node.line, node.column))

    def wrong_inside(self, node: Scalar, offset: int, message: str) -> None:
        """At a character of a text."""
        self.problems.append(Problem(message, *self._place(node, offset)))

    def _place(self, node: Scalar, offset: int) -> tuple[int, int]:
        before = node.text[:offset]
        if node.style == "|":
            line = node.line + 1 + before.count("\n")
            content = node.text.split("\n")[before.count("\n")]
            source = self._lines[line - 1] if line <= len(self._lines) else ""
            indent = len(source) - len(content) if content and source.endswith(content) else 0
            return line, indent + offset - (before.rfind("\n") + 1) + 1
        if "\n" in before or node.style == ">":
            return node.line, node.column
        return node.line, node.column + offset + (1 if node.style else 0)

    # ── shapes ──

    def table(self, node: Node, what: str, fields: tuple[Field, ...]) -> dict[str, Node]:
        """A mapping with known keys."""
        if not isinstance(node, Table):
            self.wrong(node, f"{what} is a mapping, with {_listed(f.name for f in fields)}; got {kind_of(node)}")
            return {}
        known = {field.name: field for field in fields}
        found: dict[str, Node] = {}
        for name, (key, value) in node.items.items():
            if name not in known:
                hint = meant(name, known) or f"; there are {_listed(known)}"
                self.wrong(key, f"{_quoted(name)} is not a key of {what}{hint}")
            else:
                found[name] = value
        for field in fields:
            if field.required and field.name not in node.items:
                self.wrong(node, f"{what} lacks {field.name!r}, as in {field.name}: {field.example}")
        return found

    def entries(self, node: Node, what: str, *, names: str = NAME) -> dict[str, tuple[Scalar, Node]]:
        """A mapping whose keys are names of somebody's own."""
        if not isinstance(node, Table):
            self.wrong(node, f"{what} is a mapping; got {kind_of(node)}")
            return {}
        found: dict[str, tuple[Scalar, Node]] = {}
        for name, pair in node.items.items():
            if not re.fullmatch(names, name):
                rule = "letters, digits, _ and -, not beginning with a digit or -, at most 100"
                self.wrong(pair[0], f"{_quoted(name)} cannot be a name in {what}: {rule}")
            else:
                found[name] = pair
        return found

    def listing(self, node: Node, what: str) -> list[Node]:
        """A list, or one thing that stands for a list of one."""
        if isinstance(node, Listing):
            return node.items
        if isinstance(node, Scalar) and node.value is not None:
            return [node]
        self.wrong(node, f"{what} is a list; got {kind_of(node)}")
        return []

    # ── scalars ──

    def text(self, node: Node, what: str, *, most: int = LONGEST_TEXT, empty: bool = False) -> str:
        if not isinstance(node, Scalar) or not isinstance(node.value, (str, int, float)) or node.value is True:
            self.wrong(node, f"{what} is text; got {kind_of(node)}")
            return ""
        if not empty and not node.text.strip():
            self.wrong(node, f"{what} is empty")
        if "\0" in node.text:
            self.wrong(node, f"{what} has a NUL in it")
        if len(node.text) > most:
            self.wrong(node, f"{what} has {len(node.text)} characters, and at most {most}")
            return ""
        return node.text

    def variable(self, node: Node, what: str) -> str:
        """Any scalar as the text that was written: what an environment takes."""
        if not isinstance(node, Scalar):
            self.wrong(node, f"{what} is text, a number or a boolean; got {kind_of(node)}")
            return ""
        if "\0" in node.text:
            self.wrong(node, f"{what} has a NUL in it")
        if node.value is None:
            return ""
        return node.text if not isinstance(node.value, bool) else node.text.lower()

    def scalar(self, node: Node, what: str) -> Any:
        """As data; a number whose text would change is text: 3.10 stays 3.10."""
        if not isinstance(node, Scalar):
            self.wrong(node, f"{what} is text, a number or a boolean; got {kind_of(node)}")
            return None
        value = node.value
        if isinstance(value, (int, float)) and not isinstance(value, bool) and str(value) != node.text:
            return node.text
        return value

    def boolean(self, node: Node, what: str) -> bool:
        if not isinstance(node, Scalar) or not isinstance(node.value, bool):
            self.wrong(node, f"{what} is true or false; got {kind_of(node)}")
            return False
        return node.value

    def whole(self, node: Node, what: str, least: int, most: int) -> int:
        value = node.value if isinstance(node, Scalar) else None
        if isinstance(value, bool) or not isinstance(value, int) or not least <= value <= most:
            self.wrong(node, f"{what} is a whole number from {least} to {most}; got {kind_of(node)}")
            return 0
        return value

    def duration(self, node: Node, what: str) -> float:
        value = node.value if isinstance(node, Scalar) else None
        seconds = -1.0
        if isinstance(value, (int, float)) and not isinstance(value, bool):
            seconds = float(value)
        elif isinstance(value, str) and len(value) < 40 and re.fullmatch(DURATION, value):  # noqa: PLR2004 - enough
            unit = value.lstrip("0123456789.").strip() or "s"
            seconds = float(value.removesuffix(unit).strip()) * _UNITS[unit]
        if not 0 < seconds <= _LONGEST:
            self.wrong(node, f"{what} is a number of seconds, or a time like 90s, 10m or 2h; got {kind_of(node)}")
            return 0.0
        return seconds

    def factor(self, node: Node, what: str) -> float:
        value = node.value if isinstance(node, Scalar) else None
        if isinstance(value, bool) or not isinstance(value, (int, float)) or not 1 <= value <= 1000:  # noqa: PLR2004 - more waits for ever
            self.wrong(node, f"{what} is a number from 1 to 1000; got {kind_of(node)}")
            return 1.0
        return float(value)

    def backoff(self, node: Node, what: str, fields: tuple[Field, ...]) -> Backoff | None:
        if isinstance(node, Scalar):
            return Backoff(self.duration(node, what))
        found = self.table(node, what, fields)
        if "base" not in found:
            return None
        base = self.duration(found["base"], f"base of {what}")
        most = self.duration(found["max"], f"max of {what}") if "max" in found else max(300.0, base)
        if most < base:
            self.wrong(found["max"], f"max of {what} is below its base")
        factor = self.factor(found["factor"], f"factor of {what}") if "factor" in found else 2.0
        jitter = self.boolean(found["jitter"], f"jitter of {what}") if "jitter" in found else True
        return Backoff(base, factor, most, jitter)

    # ── with expressions in them ──

    def env(self, node: Node, what: str) -> dict[str, str]:
        values: dict[str, str] = {}
        if not isinstance(node, Table):
            self.wrong(node, f"{what} is a mapping of variables; got {kind_of(node)}")
            return values
        for name, (key, value) in node.items.items():
            if not _VARIABLE.fullmatch(name):
                self.wrong(key, f"{_quoted(name)} in {what} is no name of a variable: letters, digits and _")
            else:
                values[name] = self.filled(value, f"{name} in {what}", self.variable)
        return values

    def filled(self, node: Node, what: str, read: Callable[[Node, str], str]) -> str:
        """A text whose expressions are read, too."""
        text = read(node, what)
        if isinstance(node, Scalar) and OPEN in text:
            for place, part in pieces(text):
                if isinstance(part, BadExpression):
                    self.wrong_inside(node, part.position, f"{what}: {part.message}")
                elif not isinstance(part, str):
                    self.met.append(Met(node, place + len(OPEN), part, self.roots, self.own_env))
        return text

    def condition(self, node: Node, what: str) -> str:
        if isinstance(node, Scalar) and isinstance(node.value, bool):
            return "true" if node.value else "false"
        if not isinstance(node, Scalar) or not isinstance(node.value, str):
            self.wrong(node, f"{what} is an expression, as in success() && inputs.deploy; got {kind_of(node)}")
            return ""
        try:
            self.met.append(Met(node, 0, parse(node.text), self.roots, self.own_env))
        except BadExpression as error:
            self.wrong_inside(node, error.position, f"{what}: {error.message}")
        return node.text.strip()


def kind_of(node: Node) -> str:
    """What something is, for whoever expected something else."""
    if isinstance(node, Table):
        return "a mapping"
    if isinstance(node, Listing):
        return "a list" if node.items else "an empty list"
    if isinstance(node, Scalar):
        if node.value is None:
            return "nothing"
        if isinstance(node.value, bool):
            return f"a boolean, {node.text}"
        return f"{'text' if isinstance(node.value, str) else 'the number'} {_quoted(node.text)}"
    return "something else"


def _quoted(text: str) -> str:
    return repr(text if len(text) <= 60 else text[:59] + "…")  # noqa: PLR2004 - a line


def _listed(names: Iterable[str]) -> str:
    return ", ".join(names)
