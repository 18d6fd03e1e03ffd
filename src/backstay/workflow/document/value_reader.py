"""Read values of a document as the type that their key requires. A problem is recorded with its position, and reading
goes on.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from typing import Any, TypeVar

from msgspec import Struct

from backstay.errors import BadExpression, Problem
from backstay.job.api.retry import Backoff
from backstay.workflow.document.fields import DURATION, NAME, Field
from backstay.workflow.document.nodes import ListNode, MappingNode, Node, ScalarNode
from backstay.workflow.document.problems import quote, suggest
from backstay.workflow.expressions.expression import Expression, parse
from backstay.workflow.expressions.interpolation import OPEN, split_template

T = TypeVar("T")

_UNITS = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0}
#: Ten years, the limit of all durations.
_LONGEST = 10 * 365 * 86400.0
_VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
LONGEST_TEXT = 64 * 1024


class ExpressionUse(Struct, frozen=True):
    """An expression of the document, its position, and the names that are available there."""

    node: ScalarNode
    offset: int
    expression: Expression
    roots: tuple[str, ...]
    env: frozenset[str]


class ValueReader:
    """Reads values, and collects the problems and expressions of the document."""

    def __init__(self, text: str) -> None:
        self.problems: list[Problem] = []
        self._lines = text.split("\n")
        self.expressions: list[ExpressionUse] = []
        #: Roots that expressions may use at the current position, and the variables of the current step.
        self.roots: tuple[str, ...] = ()
        self.own_env: frozenset[str] = frozenset()

    # ── problems ──

    def add_problem(self, node: Node, message: str) -> None:
        self.problems.append(Problem(message, node.line, node.column))

    def add_problem_inside(self, node: ScalarNode, offset: int, message: str) -> None:
        """Add a problem at a character of a text."""
        self.problems.append(Problem(message, *self._locate(node, offset)))

    def _locate(self, node: ScalarNode, offset: int) -> tuple[int, int]:
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

    def read_mapping(self, node: Node, what: str, fields: tuple[Field, ...]) -> dict[str, Node]:
        """Read a mapping with fixed keys."""
        if not isinstance(node, MappingNode):
            self.add_problem(
                node, f"{what} must be a mapping, with {_join(f.name for f in fields)}; got {describe_node(node)}"
            )
            return {}
        known = {field.name: field for field in fields}
        found: dict[str, Node] = {}
        for name, (key, value) in node.items.items():
            if name not in known:
                hint = suggest(name, known) or f"; the keys are {_join(known)}"
                self.add_problem(key, f"{quote(name)} is not a key of {what}{hint}")
            else:
                found[name] = value
        for field in fields:
            if field.required and field.name not in node.items:
                self.add_problem(node, f"{what} lacks {field.name!r}, as in {field.name}: {field.example}")
        return found

    def read_entries(self, node: Node, what: str, *, names: str = NAME) -> dict[str, tuple[ScalarNode, Node]]:
        """Read a mapping whose keys are names that the user chooses."""
        if not isinstance(node, MappingNode):
            self.add_problem(node, f"{what} must be a mapping; got {describe_node(node)}")
            return {}
        found: dict[str, tuple[ScalarNode, Node]] = {}
        for name, pair in node.items.items():
            if not re.fullmatch(names, name):
                rule = "use letters, digits, _ and -, begin with a letter or _, at most 100 characters"
                self.add_problem(pair[0], f"{quote(name)} is not a valid name in {what}: {rule}")
            else:
                found[name] = pair
        return found

    def read_list(self, node: Node, what: str) -> list[Node]:
        """Read a list; a single scalar is read as a list of one."""
        if isinstance(node, ListNode):
            return node.items
        if isinstance(node, ScalarNode) and node.value is not None:
            return [node]
        self.add_problem(node, f"{what} must be a list; got {describe_node(node)}")
        return []

    # ── scalars ──

    def read_text(self, node: Node, what: str, *, most: int = LONGEST_TEXT, empty: bool = False) -> str:
        if not isinstance(node, ScalarNode) or not isinstance(node.value, (str, int, float)) or node.value is True:
            self.add_problem(node, f"{what} must be text; got {describe_node(node)}")
            return ""
        if not empty and not node.text.strip():
            self.add_problem(node, f"{what} is empty")
        if "\0" in node.text:
            self.add_problem(node, f"{what} contains a NUL character")
        if len(node.text) > most:
            self.add_problem(node, f"{what} has {len(node.text)} characters, but at most {most} are allowed")
            return ""
        return node.text

    def read_variable(self, node: Node, what: str) -> str:
        """Read any scalar as its source text, for an environment variable."""
        if not isinstance(node, ScalarNode):
            self.add_problem(node, f"{what} must be text, a number or a boolean; got {describe_node(node)}")
            return ""
        if "\0" in node.text:
            self.add_problem(node, f"{what} contains a NUL character")
        if node.value is None:
            return ""
        return node.text if not isinstance(node.value, bool) else node.text.lower()

    def read_scalar(self, node: Node, what: str) -> Any:
        """Read a scalar. A number whose text would change is kept as text: 3.10 stays 3.10."""
        if not isinstance(node, ScalarNode):
            self.add_problem(node, f"{what} must be text, a number or a boolean; got {describe_node(node)}")
            return None
        value = node.value
        if isinstance(value, (int, float)) and not isinstance(value, bool) and str(value) != node.text:
            return node.text
        return value

    def read_boolean(self, node: Node, what: str) -> bool:
        if not isinstance(node, ScalarNode) or not isinstance(node.value, bool):
            self.add_problem(node, f"{what} must be true or false; got {describe_node(node)}")
            return False
        return node.value

    def read_integer(self, node: Node, what: str, least: int, most: int) -> int:
        value = node.value if isinstance(node, ScalarNode) else None
        if isinstance(value, bool) or not isinstance(value, int) or not least <= value <= most:
            self.add_problem(node, f"{what} must be a whole number from {least} to {most}; got {describe_node(node)}")
            return 0
        return value

    def read_duration(self, node: Node, what: str) -> float:
        value = node.value if isinstance(node, ScalarNode) else None
        seconds = -1.0
        if isinstance(value, (int, float)) and not isinstance(value, bool):
            seconds = float(value)
        elif isinstance(value, str) and len(value) < 40 and re.fullmatch(DURATION, value):  # noqa: PLR2004 - bounds the regex match
            unit = value.lstrip("0123456789.").strip() or "s"
            seconds = float(value.removesuffix(unit).strip()) * _UNITS[unit]
        if not 0 < seconds <= _LONGEST:
            self.add_problem(
                node, f"{what} must be a number of seconds, or a time like 90s, 10m or 2h; got {describe_node(node)}"
            )
            return 0.0
        return seconds

    def read_factor(self, node: Node, what: str) -> float:
        value = node.value if isinstance(node, ScalarNode) else None
        if isinstance(value, bool) or not isinstance(value, (int, float)) or not 1 <= value <= 1000:  # noqa: PLR2004 - a larger factor overflows any wait
            self.add_problem(node, f"{what} must be a number from 1 to 1000; got {describe_node(node)}")
            return 1.0
        return float(value)

    def read_backoff(self, node: Node, what: str, fields: tuple[Field, ...]) -> Backoff | None:
        if isinstance(node, ScalarNode):
            return Backoff(self.read_duration(node, what))
        found = self.read_mapping(node, what, fields)
        if "base" not in found:
            return None
        base = self.read_duration(found["base"], f"base of {what}")
        most = self.read_duration(found["max"], f"max of {what}") if "max" in found else max(300.0, base)
        if most < base:
            self.add_problem(found["max"], f"max of {what} must not be below its base")
        factor = self.read_factor(found["factor"], f"factor of {what}") if "factor" in found else 2.0
        jitter = self.read_boolean(found["jitter"], f"jitter of {what}") if "jitter" in found else True
        return Backoff(base, factor, most, jitter)

    # ── values with expressions ──

    def read_env(self, node: Node, what: str) -> dict[str, str]:
        values: dict[str, str] = {}
        if not isinstance(node, MappingNode):
            self.add_problem(node, f"{what} must be a mapping of variables; got {describe_node(node)}")
            return values
        for name, (key, value) in node.items.items():
            if not _VARIABLE.fullmatch(name):
                self.add_problem(
                    key, f"{quote(name)} in {what} is not a valid variable name: use letters, digits and _"
                )
            else:
                values[name] = self.read_template(value, f"{name} in {what}", self.read_variable)
        return values

    def read_template(self, node: Node, what: str, read: Callable[[Node, str], str]) -> str:
        """Read a text and parse its expressions."""
        text = read(node, what)
        if isinstance(node, ScalarNode) and OPEN in text:
            for place, part in split_template(text):
                if isinstance(part, BadExpression):
                    self.add_problem_inside(node, part.position, f"{what}: {part.message}")
                elif not isinstance(part, str):
                    self.expressions.append(ExpressionUse(node, place + len(OPEN), part, self.roots, self.own_env))
        return text

    def read_condition(self, node: Node, what: str) -> str:
        if isinstance(node, ScalarNode) and isinstance(node.value, bool):
            return "true" if node.value else "false"
        if not isinstance(node, ScalarNode) or not isinstance(node.value, str):
            self.add_problem(
                node, f"{what} must be an expression, as in success() && inputs.deploy; got {describe_node(node)}"
            )
            return ""
        try:
            self.expressions.append(ExpressionUse(node, 0, parse(node.text), self.roots, self.own_env))
        except BadExpression as error:
            self.add_problem_inside(node, error.position, f"{what}: {error.message}")
        return node.text.strip()


def describe_node(node: Node) -> str:
    """Describe a node for a message: "a mapping", "text 'x'"."""
    if isinstance(node, MappingNode):
        return "a mapping"
    if isinstance(node, ListNode):
        return "a list" if node.items else "an empty list"
    if isinstance(node, ScalarNode):
        if node.value is None:
            return "nothing"
        if isinstance(node.value, bool):
            return f"a boolean, {node.text}"
        return f"{'text' if isinstance(node.value, str) else 'the number'} {quote(node.text)}"
    return "something else"


def _join(names: Iterable[str]) -> str:
    return ", ".join(names)
