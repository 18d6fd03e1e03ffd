"""A matrix spread out: one set of values for each job that it makes."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import product

from backstay.workflow.definition import Matrix, Scalar
from backstay.workflow.expressions.expression import as_text

#: Jobs that one matrix makes at most.
MOST = 1000

Values = dict[str, Scalar]


def size(matrix: Matrix) -> int:
    """How many combinations there are before `exclude`: known without making them."""
    count = 1 if matrix.axes else 0
    for values in matrix.axes.values():
        count *= len(values)
    return count + len(matrix.include)


def spread(matrix: Matrix) -> list[Values]:
    """All combinations of the axes without those that an `exclude` covers; then every `include`: its values join those
    combinations whose axes it does not contradict, or stand for themselves where there is none.
    """
    axes = list(matrix.axes)
    found: list[Values] = [dict(zip(axes, values, strict=True)) for values in product(*matrix.axes.values())]
    if not axes:
        found = []
    found = [one for one in found if not any(_covers(excluded, one) for excluded in matrix.exclude)]
    made = [dict(one) for one in found]
    for extra in matrix.include:
        fixed = {name: value for name, value in extra.items() if name in matrix.axes}
        suits = [place for place, one in enumerate(found) if _covers(fixed, one)]
        if suits and len(fixed) < len(extra):
            for place in suits:
                made[place].update(extra)
        elif not suits:
            made.append(dict(extra))
    return made


def _covers(part: Mapping[str, Scalar], whole: Mapping[str, Scalar]) -> bool:
    return all(name in whole and _same(whole[name], value) for name, value in part.items())


def _same(one: Scalar, other: Scalar) -> bool:
    """1 and true are not the same."""
    return one == other and isinstance(one, bool) is isinstance(other, bool)


def suffix(values: Mapping[str, Scalar]) -> str:
    """What tells the jobs of a matrix apart: "3.11, linux"."""
    return ", ".join(as_text(value) for value in values.values())
