"""Split the `if` of a job into the condition that the store checks and the expression that a decide job, an internal
job before the job itself, evaluates.
"""

from __future__ import annotations

from msgspec import Struct

from backstay.job.model import When
from backstay.workflow.expressions.expression import Expression, parse
from backstay.workflow.expressions.tree import StatusCall

_STORE_CONDITIONS: dict[str, When] = {"success": "all_success", "always": "all_done", "failure": "any_failure"}


class Condition(Struct, frozen=True):
    """A compiled `if`.

    when: the part of the condition that the store checks.
    text: the expression that a decide job (an internal job) evaluates once `when` holds; "": there is none.
    """

    when: When = "all_success"
    text: str = ""


def compile_condition(text: str, *, needs: bool = True) -> Condition:
    """Compile the text of an `if`. `needs`: whether the job waits for other jobs. Raises BadExpression."""
    if not text.strip():
        return Condition()
    expression = parse(text)
    plain = _STORE_CONDITIONS.get(expression.tree.name) if isinstance(expression.tree, StatusCall) else None
    if plain is not None and (plain != "any_failure" or needs):
        return Condition(plain)
    return Condition(_store_condition(expression), text)


def _store_condition(expression: Expression) -> When:
    # An expression with a status function must be evaluated after any result of the blockers. Any other expression
    # implies success(). The store checks that itself, and then records that a failure caused the skip.
    return "all_done" if expression.has_status_call else "all_success"
