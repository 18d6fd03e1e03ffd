"""When a job of a run starts: what the store can see by itself, and what has to be decided."""

from __future__ import annotations

from msgspec import Struct

from backstay.job.model import When
from backstay.workflow.expressions.expression import Expression, parse
from backstay.workflow.expressions.tree import Call

_PLAIN: dict[str, When] = {"success": "all_success", "always": "all_done", "failure": "any_failure"}


class Condition(Struct, frozen=True):
    """`when` is the store's. `text`, if there is any, is decided once that holds."""

    when: When = "all_success"
    text: str = ""


def condition(text: str, *, needs: bool = True) -> Condition:
    """Raises BadExpression. `needs`: whether the job waits for others at all."""
    if not text.strip():
        return Condition()
    expression = parse(text)
    plain = _PLAIN.get(expression.tree.name) if isinstance(expression.tree, Call) else None
    if plain is not None and (plain != "any_failure" or needs):
        return Condition(plain)
    return Condition(_first(expression), text)


def _first(expression: Expression) -> When:
    # One that speaks of failure itself must be asked whatever happened. Any other means success as well: then the
    # store skips it, and knows whose failure that was.
    return "all_done" if expression.asks_status else "all_success"
