"""Whether expressions speak of what is there."""

from __future__ import annotations

from msgspec import Struct

from backstay.workflow.document.suggestion import meant
from backstay.workflow.document.values import Met, Values
from backstay.workflow.expressions.tree import Reference


class Known(Struct, frozen=True):
    """The names that there are, by what they begin with. What commands put out is known to nobody."""

    needs: frozenset[str] = frozenset()
    inputs: frozenset[str] = frozenset()
    env: frozenset[str] = frozenset()
    matrix: frozenset[str] = frozenset()


_WAYS_OUT = {
    "needs": "add it to needs",
    "inputs": "declare it under inputs",
    "env": "declare it under env; a variable of the worker is the shell's, $NAME",
    "matrix": "the matrix has no such list",
}


def check_met(values: Values, since: int, known: Known, what: str) -> None:
    """All expressions that were met from there on."""
    for met in values.met[since:]:
        for reference in met.expression.references:
            if message := _lost(met, reference, known):
                values.wrong_inside(met.node, met.offset + reference.at, f"{what}: {message}")


def _lost(met: Met, reference: Reference, known: Known) -> str:
    """Where a reference leads nowhere, what to say about it."""
    root, name = reference.path[0], reference.path[1]
    if root not in met.roots:
        return f"{root} cannot be spoken of here, only {', '.join(met.roots)}"
    if root == "outputs":
        return ""
    names: frozenset[str] = getattr(known, root)
    if root == "env":
        names |= met.env
    return "" if name in names else f"there is no {root}.{name}{meant(name, names) or '; ' + _WAYS_OUT[root]}"
