"""Check that the references of a document's expressions exist."""

from __future__ import annotations

from itertools import chain

from msgspec import Struct

from backstay.workflow.document.effort import Hints
from backstay.workflow.document.value_reader import ExpressionUse, ValueReader
from backstay.workflow.expressions.tree import Reference


class KnownNames(Struct, frozen=True):
    """The names that expressions may refer to, by the root of the reference (`needs` in `needs.build.result`). There
    is no field for `outputs`: their names are not known before the commands run.
    """

    needs: frozenset[str] = frozenset()
    inputs: frozenset[str] = frozenset()
    #: The variables of the workflow, and those of the job.
    env: frozenset[str] = frozenset()
    job_env: frozenset[str] = frozenset()
    matrix: frozenset[str] = frozenset()


_HINTS = {
    "needs": "add it to needs",
    "inputs": "declare it under inputs",
    "env": "declare it under env; for a variable of the worker, use $NAME in the command",
    "matrix": "the matrix has no such list",
}


def check_references(values: ValueReader, since: int, known: KnownNames, what: str) -> None:
    """Check the references in `values.expressions[since:]`, the expressions that were read since the caller noted their
    number. Adds a problem to `values` for each reference to an unknown name. `what`: the start of its message.
    """
    for use in values.expressions[since:]:
        values.effort.spend(len(use.expression.references), use.node.line, use.node.column)
        for reference in use.expression.references:
            if message := _describe_unresolved(use, reference, known, values.hints):
                values.add_problem_inside(use.node, use.offset + reference.at, f"{what}: {message}")


def _describe_unresolved(use: ExpressionUse, reference: Reference, known: KnownNames, hints: Hints) -> str:
    """Return why a reference cannot be resolved; "" if it can."""
    root, name = reference.path[0], reference.path[1]
    if root not in use.roots:
        return f"{root} is not available here, only {', '.join(use.roots)}"
    if root == "outputs":
        return ""
    groups: tuple[frozenset[str], ...] = (getattr(known, root),)
    if root == "env":
        groups = (use.env, known.job_env, known.env)
    if any(name in names for names in groups):
        return ""
    hint = hints.suggest(name, chain.from_iterable(groups)) or "; " + _HINTS[root]
    return f"{root}.{name} does not exist{hint}"
