"""Check that the references of a document's expressions exist."""

from __future__ import annotations

from msgspec import Struct

from backstay.workflow.document.problems import suggest
from backstay.workflow.document.value_reader import ExpressionUse, ValueReader
from backstay.workflow.expressions.tree import Reference


class KnownNames(Struct, frozen=True):
    """The names that expressions may refer to, by root. Outputs of commands are not known before they run."""

    needs: frozenset[str] = frozenset()
    inputs: frozenset[str] = frozenset()
    env: frozenset[str] = frozenset()
    matrix: frozenset[str] = frozenset()


_HINTS = {
    "needs": "add it to needs",
    "inputs": "declare it under inputs",
    "env": "declare it under env; for a variable of the worker, use $NAME in the command",
    "matrix": "the matrix has no such list",
}


def check_references(values: ValueReader, since: int, known: KnownNames, what: str) -> None:
    """Check the expressions that were found since index `since`, and add a problem for each unknown reference."""
    for use in values.expressions[since:]:
        for reference in use.expression.references:
            if message := _describe_unresolved(use, reference, known):
                values.add_problem_inside(use.node, use.offset + reference.at, f"{what}: {message}")


def _describe_unresolved(use: ExpressionUse, reference: Reference, known: KnownNames) -> str:
    """Return the problem with a reference, or ""."""
    root, name = reference.path[0], reference.path[1]
    if root not in use.roots:
        return f"{root} is not available here, only {', '.join(use.roots)}"
    if root == "outputs":
        return ""
    names: frozenset[str] = getattr(known, root)
    if root == "env":
        names |= use.env
    return "" if name in names else f"{root}.{name} does not exist{suggest(name, names) or '; ' + _HINTS[root]}"
