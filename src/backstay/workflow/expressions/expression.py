"""The language of `if:` and `${{ … }}`: read by hand, with positions, into a small tree; never `eval`.

    success() && needs.build.outputs.changed == 'yes' || inputs.force

Text and depth are bounded, so that no definition can make a worker think for long. Text and numbers compare as numbers
where the text is one; text is true unless it is empty, so compare with `== 'true'`.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, Literal, cast

from msgspec import Struct

from backstay.errors import BadExpression
from backstay.workflow.expressions.parser import LONGEST, Parser
from backstay.workflow.expressions.tree import All, Any_, Call, Compare, Constant, Not, Reference, Tree

Result = Literal["success", "failure", "cancelled", "skipped"]


class Need(Struct, frozen=True):
    """What a job that was waited for came to."""

    result: Result = "success"
    outputs: Mapping[str, Any] = {}


class Context(Struct, frozen=True, kw_only=True):
    """What an expression may speak of. `failed`: a job before it failed, however far away."""

    needs: Mapping[str, Need] = {}
    inputs: Mapping[str, Any] = {}
    env: Mapping[str, Any] = {}
    matrix: Mapping[str, Any] = {}
    outputs: Mapping[str, Any] = {}
    failed: bool = False
    #: Inside a job: how the steps before came out, which is what success() and failure() ask then.
    steps: Result | None = None


class Expression(Struct, frozen=True):
    """An expression that was read."""

    text: str
    tree: Tree
    references: tuple[Reference, ...] = ()
    calls: tuple[Call, ...] = ()

    @property
    def asks_status(self) -> bool:
        """Whether it says itself when it holds after a failure. One that does not holds after success only."""
        return bool(self.calls)

    def value(self, context: Context) -> Any:
        return _value(self.tree, context)

    def holds(self, context: Context) -> bool:
        """As the condition of a job: without a status function, `success()` is meant as well."""
        if not self.asks_status and not _call("success", context):
            return False
        return is_true(self.value(context))


def parse(text: str) -> Expression:
    """Read an expression, with or without `${{ }}` around it. Raises BadExpression."""
    offset, inner = 0, text
    bare = text.strip()
    if bare.startswith("${{") and bare.endswith("}}") and "${{" not in bare[3:]:
        offset = text.index("${{") + 3
        inner = text[offset : text.rindex("}}")]
    if len(inner) > LONGEST:
        raise BadExpression(f"an expression has at most {LONGEST} characters, not {len(inner)}", text="…", position=0)
    parser = Parser(text, inner, offset)
    tree = parser.whole()
    return Expression(text, tree, tuple(parser.references), tuple(parser.calls))


def _value(tree: Tree, context: Context) -> Any:
    match tree:
        case Constant(value):
            return value
        case Reference(path):
            return _look(path, context)
        case Call(name):
            return _call(name, context)
        case Not(one):
            return not is_true(_value(one, context))
        case Compare(left, right, equal):
            return same(_value(left, context), _value(right, context)) is equal
        case All(parts):
            return _first(parts, context, stop_at=False)
        case Any_(parts):
            return _first(parts, context, stop_at=True)


def _first(parts: tuple[Tree, ...], context: Context, *, stop_at: bool) -> Any:
    value: Any = None
    for part in parts:
        value = _value(part, context)
        if is_true(value) is stop_at:
            break
    return value


def _look(path: tuple[str, ...], context: Context) -> Any:
    """What is not there is null, which is as good as empty text."""
    if path[0] == "needs":
        need = context.needs.get(path[1])
        if need is None:
            return None
        return need.result if path[2] == "result" else need.outputs.get(path[3])
    return cast("Mapping[str, Any]", getattr(context, path[0])).get(path[1])


def _call(name: str, context: Context) -> bool:
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
    """False, 0, null and empty text are not."""
    return bool(value)


def same(one: Any, other: Any) -> bool:
    """Equal, with text read as what it is compared with."""
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
    """A value as it stands in text: true, 3, nothing for null, JSON for what has parts."""
    if value is None:
        return ""
    if isinstance(value, str):
        return value
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, float) and value.is_integer() and abs(value) < 1e15:  # noqa: PLR2004 - exact up to there
        return str(int(value))
    if isinstance(value, (int, float)):
        return str(value)
    return json.dumps(value, default=str, ensure_ascii=False)
