"""Evaluate expressions of `if:` and `${{ … }}`. A parser of our own builds a small tree with positions; Python's `eval`
is never used.

    success() && needs.build.outputs.changed == 'yes' || inputs.force

Length and nesting are bounded, so no expression can occupy a worker for long. A text and a number compare as numbers if
the text is numeric. Any non-empty text is true, even 'false': compare with `== 'true'`.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, Literal, cast

from msgspec import Struct

from backstay.errors import BadExpression
from backstay.workflow.expressions.parser import LONGEST, Parser
from backstay.workflow.expressions.tree import And, Compare, Constant, Not, Or, Reference, StatusCall, Tree

Result = Literal["success", "failure", "cancelled", "skipped"]


class Need(Struct, frozen=True):
    """What an expression sees as `needs.<job>`: the result and the outputs of a job in the `needs` of its own job."""

    result: Result = "success"
    outputs: Mapping[str, Any] = {}


class Context(Struct, frozen=True, kw_only=True):
    """The values that an expression can refer to. `failed`: whether one of the needed jobs, or a job that these need,
    failed.
    """

    needs: Mapping[str, Need] = {}
    inputs: Mapping[str, Any] = {}
    env: Mapping[str, Any] = {}
    matrix: Mapping[str, Any] = {}
    outputs: Mapping[str, Any] = {}
    failed: bool = False
    #: For the condition of a step: the result of the earlier steps, which status functions test instead of `needs`.
    steps: Result | None = None


class Expression(Struct, frozen=True):
    """A parsed expression."""

    text: str
    tree: Tree
    references: tuple[Reference, ...] = ()
    calls: tuple[StatusCall, ...] = ()

    @property
    def has_status_call(self) -> bool:
        """Whether the expression calls a status function. As a condition, an expression without one implies
        `success() &&`.
        """
        return bool(self.calls)

    def evaluate(self, context: Context) -> Any:
        return _evaluate(self.tree, context)

    def holds(self, context: Context) -> bool:
        """Evaluate the expression as a condition. If it calls no status function, it holds only if
        `success()` holds, too.
        """
        if not self.has_status_call and not _call_status("success", context):
            return False
        return is_true(self.evaluate(context))


def parse(text: str) -> Expression:
    """Parse an expression, with or without `${{ }}` around it. Raises BadExpression."""
    offset, inner = 0, text
    bare = text.strip()
    if bare.startswith("${{") and bare.endswith("}}") and "${{" not in bare[3:]:
        offset = text.index("${{") + 3
        inner = text[offset : text.rindex("}}")]
    if len(inner) > LONGEST:
        raise BadExpression(f"an expression has at most {LONGEST} characters, not {len(inner)}", text="…", position=0)
    parser = Parser(text, inner, offset)
    tree = parser.parse()
    return Expression(text, tree, tuple(parser.references), tuple(parser.calls))


def _evaluate(tree: Tree, context: Context) -> Any:
    match tree:
        case Constant(value):
            return value
        case Reference(path):
            return _resolve(path, context)
        case StatusCall(name):
            return _call_status(name, context)
        case Not(operand):
            return not is_true(_evaluate(operand, context))
        case Compare(left, right, equal):
            return loosely_equal(_evaluate(left, context), _evaluate(right, context)) is equal
        case And(parts):
            return _short_circuit(parts, context, stop_at=False)
        case Or(parts):
            return _short_circuit(parts, context, stop_at=True)


def _short_circuit(parts: tuple[Tree, ...], context: Context, *, stop_at: bool) -> Any:
    value: Any = None
    for part in parts:
        value = _evaluate(part, context)
        if is_true(value) is stop_at:
            break
    return value


def _resolve(path: tuple[str, ...], context: Context) -> Any:
    """Look up a reference. A missing value is null, which equals empty text."""
    if path[0] == "needs":
        need = context.needs.get(path[1])
        if need is None:
            return None
        return need.result if path[2] == "result" else need.outputs.get(path[3])
    return cast("Mapping[str, Any]", getattr(context, path[0])).get(path[1])


def _call_status(name: str, context: Context) -> bool:
    inside = context.steps is not None
    results = {context.steps} if inside else {need.result for need in context.needs.values()}
    match name:
        case "always":
            return True
        case "failure":
            return (context.failed and not inside) or "failure" in results
        case "cancelled":
            return "cancelled" in results
        case _:
            return results <= {"success"}


def is_true(value: Any) -> bool:
    """Whether a value counts as true: all values but false, 0, null, empty text and empty collections."""
    return bool(value)


def loosely_equal(one: Any, other: Any) -> bool:
    """Compare two values; a text is converted to the type of the other operand."""
    if isinstance(other, str) and not isinstance(one, str):
        one, other = other, one
    if isinstance(one, str) and not isinstance(other, str):
        if other is None:
            return not one
        if isinstance(other, bool):
            return one == as_text(other)
        if isinstance(other, (int, float)):
            try:
                return float(one) == other
            except ValueError:
                return False
        return one == as_text(other)
    if isinstance(one, bool) is not isinstance(other, bool):
        return False
    return bool(one == other)


def as_text(value: Any) -> str:
    """Format a value for a template, as in `true` or `3`: "" for null, JSON for lists and mappings."""
    if value is None:
        return ""
    if isinstance(value, str):
        return value
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, float) and value.is_integer() and abs(value) < 1e15:  # noqa: PLR2004 - smaller floats hold integers exactly
        return str(int(value))
    if isinstance(value, (int, float)):
        return str(value)
    return json.dumps(value, default=str, ensure_ascii=False)
