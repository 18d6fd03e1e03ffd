"""Read values of a document as the type that their key requires. A problem is recorded with its position, and reading
continues.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from typing import Any, TypeVar

from msgspec import Struct

from backstay.errors import BadExpression, Problem
from backstay.job.api.retry import Backoff
from backstay.workflow.document.effort import Effort, Hints, UnreadableDocument
from backstay.workflow.document.fields import DURATION, NAME, Field
from backstay.workflow.document.nodes import (
    MOST_FOUND,
    TOO_MANY,
    DocumentNode,
    ListNode,
    MappingNode,
    ScalarNode,
    quote,
)
from backstay.workflow.expressions.expression import Expression, parse
from backstay.workflow.expressions.interpolation import OPEN, split_template

T = TypeVar("T")

_UNITS = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0}
#: Ten years, the limit of all durations.
_LONGEST = 10 * 365 * 86400.0
_VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
LONGEST_TEXT = 64 * 1024
#: Limit of expressions per document, and the steps that reading one of them counts for.
MOST_EXPRESSIONS, EXPRESSION_STEPS = 5000, 10


class ExpressionUse(Struct, frozen=True):
    """An expression of the document, and its position.

    node: the YAML scalar that contains the expression.
    offset: where the expression begins in the scalar's text.
    roots: the first names of the references that the expression may use, such as `needs` in `needs.build.result`.
    env: the names of the variables in the `env` of the step that contains the expression. It may use these, too.
    """

    node: ScalarNode
    offset: int
    expression: Expression
    roots: tuple[str, ...]
    env: frozenset[str]


class ValueReader:
    """Reads values, and collects the problems and expressions of the document. Any method raises UnreadableDocument
    when the document exceeds a limit of work, of problems or of expressions.
    """

    def __init__(self, text: str, effort: Effort | None = None) -> None:
        self.problems: list[Problem] = []
        self.effort = effort or Effort()
        self.hints = Hints()
        self._lines = text.split("\n")
        self.expressions: list[ExpressionUse] = []
        #: The roots of references (`needs` in `needs.build.result`) that expressions in the keys being read may use.
        self.roots: tuple[str, ...] = ()
        #: Names of the variables in the `env` of the step that is being read.
        self.own_env: frozenset[str] = frozenset()

    # ── problems ──

    def add_problem(self, node: DocumentNode, message: str) -> None:
        self._add(message, node.line, node.column)

    def add_problem_inside(self, node: ScalarNode, offset: int, message: str) -> None:
        """Add a problem at the position of one character of a scalar's text."""
        self._add(message, *self._locate(node, offset))

    def _add(self, message: str, line: int, column: int) -> None:
        if len(self.problems) >= MOST_FOUND:
            raise UnreadableDocument(Problem(TOO_MANY, line, column))
        self.problems.append(Problem(message, line, column))

    def _locate(self, node: ScalarNode, offset: int) -> tuple[int, int]:
        before = node.text[:offset]
        if node.style == "|":
            line = node.line + 1 + before.count("\n")
            content = node.text[before.rfind("\n") + 1 :].partition("\n")[0]
            source = self._lines[line - 1] if line <= len(self._lines) else ""
            indent = len(source) - len(content) if content and source.endswith(content) else 0
            return line, indent + offset - (before.rfind("\n") + 1) + 1
        if "\n" in before or node.style == ">":
            return node.line, node.column
        return node.line, node.column + offset + (1 if node.style else 0)

    # ── shapes ──

    def read_mapping(self, node: DocumentNode, what: str, fields: tuple[Field, ...]) -> dict[str, DocumentNode]:
        """Read a mapping whose keys are `fields`. Unknown and missing keys are problems."""
        if not isinstance(node, MappingNode):
            self.add_problem(
                node, f"{what} must be a mapping, with {_join(f.name for f in fields)}; got {describe_node(node)}"
            )
            return {}
        known = {field.name: field for field in fields}
        found: dict[str, DocumentNode] = {}
        for name, (key, value) in node.items.items():
            if name not in known:
                hint = self.hints.suggest(name, known) or f"; the keys are {_join(known)}"
                self.add_problem(key, f"{quote(name)} is not a key of {what}{hint}")
            else:
                found[name] = value
        for field in fields:
            if field.required and field.name not in node.items:
                self.add_problem(node, f"{what} lacks {field.name!r}, as in {field.name}: {field.example}")
        return found

    def read_entries(
        self, node: DocumentNode, what: str, *, names: str = NAME
    ) -> dict[str, tuple[ScalarNode, DocumentNode]]:
        """Read a mapping whose keys are names that the user chooses."""
        if not isinstance(node, MappingNode):
            self.add_problem(node, f"{what} must be a mapping; got {describe_node(node)}")
            return {}
        found: dict[str, tuple[ScalarNode, DocumentNode]] = {}
        for name, pair in node.items.items():
            if not re.fullmatch(names, name):
                rule = "use letters, digits, _ and -, begin with a letter or _, at most 100 characters"
                self.add_problem(pair[0], f"{quote(name)} is not a valid name in {what}: {rule}")
            else:
                found[name] = pair
        return found

    def read_list(self, node: DocumentNode, what: str) -> list[DocumentNode]:
        """Read a list; a single scalar is read as a list of one."""
        if isinstance(node, ListNode):
            return node.items
        if isinstance(node, ScalarNode) and node.value is not None:
            return [node]
        self.add_problem(node, f"{what} must be a list; got {describe_node(node)}")
        return []

    # ── scalars ──

    def read_text(self, node: DocumentNode, what: str, *, most: int = LONGEST_TEXT, empty: bool = False) -> str:
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

    def read_variable(self, node: DocumentNode, what: str) -> str:
        """Read any scalar as its source text, for an environment variable."""
        if not isinstance(node, ScalarNode):
            self.add_problem(node, f"{what} must be text, a number or a boolean; got {describe_node(node)}")
            return ""
        if "\0" in node.text:
            self.add_problem(node, f"{what} contains a NUL character")
        if node.value is None:
            return ""
        return node.text if not isinstance(node.value, bool) else node.text.lower()

    def read_scalar(self, node: DocumentNode, what: str) -> Any:
        """Read a scalar. A number that Python would format differently is returned as text: "3.10", not 3.1."""
        if not isinstance(node, ScalarNode):
            self.add_problem(node, f"{what} must be text, a number or a boolean; got {describe_node(node)}")
            return None
        value = node.value
        if isinstance(value, (int, float)) and not isinstance(value, bool) and str(value) != node.text:
            return node.text
        return value

    def read_boolean(self, node: DocumentNode, what: str) -> bool:
        if not isinstance(node, ScalarNode) or not isinstance(node.value, bool):
            self.add_problem(node, f"{what} must be true or false; got {describe_node(node)}")
            return False
        return node.value

    def read_integer(self, node: DocumentNode, what: str, least: int, most: int) -> int:
        value = node.value if isinstance(node, ScalarNode) else None
        if isinstance(value, bool) or not isinstance(value, int) or not least <= value <= most:
            self.add_problem(node, f"{what} must be a whole number from {least} to {most}; got {describe_node(node)}")
            return 0
        return value

    def read_duration(self, node: DocumentNode, what: str, *, zero: bool = False) -> float:
        value = node.value if isinstance(node, ScalarNode) else None
        seconds = -1.0
        if isinstance(value, (int, float)) and not isinstance(value, bool):
            seconds = float(value)
        elif isinstance(value, str) and len(value) < 40 and re.fullmatch(DURATION, value):  # noqa: PLR2004 - bounds the regex match
            unit = value.lstrip("0123456789.").strip() or "s"
            seconds = float(value.removesuffix(unit).strip()) * _UNITS[unit]
        if not 0 <= seconds <= _LONGEST or (not seconds and not zero):
            self.add_problem(
                node, f"{what} must be a number of seconds, or a time like 90s, 10m or 2h; got {describe_node(node)}"
            )
            return 0.0
        return seconds

    def read_factor(self, node: DocumentNode, what: str) -> float:
        value = node.value if isinstance(node, ScalarNode) else None
        if isinstance(value, bool) or not isinstance(value, (int, float)) or not 1 <= value <= 1000:  # noqa: PLR2004 - a larger factor overflows any wait
            self.add_problem(node, f"{what} must be a number from 1 to 1000; got {describe_node(node)}")
            return 1.0
        return float(value)

    def read_backoff(self, node: DocumentNode, what: str, fields: tuple[Field, ...]) -> Backoff | None:
        if isinstance(node, ScalarNode):
            return Backoff(self.read_duration(node, what, zero=True))
        found = self.read_mapping(node, what, fields)
        if "base" not in found:
            return None
        base = self.read_duration(found["base"], f"base of {what}", zero=True)
        most = self.read_duration(found["max"], f"max of {what}", zero=True) if "max" in found else max(300.0, base)
        if most < base:
            self.add_problem(found["max"], f"max of {what} must not be below its base")
        factor = self.read_factor(found["factor"], f"factor of {what}") if "factor" in found else 2.0
        jitter = self.read_boolean(found["jitter"], f"jitter of {what}") if "jitter" in found else True
        return Backoff(base, factor, most, jitter)

    def read_data(self, node: DocumentNode) -> Any:
        """Read any value as plain data."""
        if isinstance(node, MappingNode):
            return {name: self.read_data(value) for name, (_, value) in node.items.items()}
        if isinstance(node, ListNode):
            return [self.read_data(one) for one in node.items]
        return node.value if isinstance(node, ScalarNode) else None

    # ── values with expressions ──

    def read_env(self, node: DocumentNode, what: str) -> dict[str, str]:
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

    def read_template(self, node: DocumentNode, what: str, read: Callable[[DocumentNode, str], str]) -> str:
        """Read a text and parse its expressions."""
        text = read(node, what)
        if isinstance(node, ScalarNode) and OPEN in text:
            for place, part in split_template(text):
                if isinstance(part, BadExpression):
                    self.add_problem_inside(node, part.position, f"{what}: {part.message}")
                elif not isinstance(part, str):
                    self._add_expression(node, place + len(OPEN), part)
        return text

    def _add_expression(self, node: ScalarNode, offset: int, expression: Expression) -> None:
        self.effort.spend(EXPRESSION_STEPS, node.line, node.column)
        if len(self.expressions) >= MOST_EXPRESSIONS:
            what = f"the document has more than {MOST_EXPRESSIONS} expressions, with aliases expanded"
            raise UnreadableDocument(Problem(what, node.line, node.column))
        self.expressions.append(ExpressionUse(node, offset, expression, self.roots, self.own_env))

    def read_condition(self, node: DocumentNode, what: str) -> str:
        if isinstance(node, ScalarNode) and isinstance(node.value, bool):
            return "true" if node.value else "false"
        if not isinstance(node, ScalarNode) or not isinstance(node.value, str):
            self.add_problem(
                node, f"{what} must be an expression, as in success() && inputs.deploy; got {describe_node(node)}"
            )
            return ""
        try:
            self._add_expression(node, 0, parse(node.text))
        except BadExpression as error:
            self.add_problem_inside(node, error.position, f"{what}: {error.message}")
        return node.text.strip()


def describe_node(node: DocumentNode) -> str:
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
