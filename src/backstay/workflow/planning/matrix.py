"""Expand a matrix into one set of values per job."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import product

from backstay.workflow.definition import Matrix, Scalar
from backstay.workflow.expressions.expression import as_text

#: Limit of jobs per matrix.
MOST = 1000

Values = dict[str, Scalar]


def count_combinations(matrix: Matrix) -> int:
    """Count the combinations before `exclude`, without building them."""
    count = 1 if matrix.axes else 0
    for values in matrix.axes.values():
        count *= len(values)
    return count + len(matrix.include)


def expand(matrix: Matrix) -> list[Values]:
    """Build all combinations of the axes, drop those that an `exclude` matches, then apply each `include`: it extends
    the combinations whose axis values it matches, or becomes a combination of its own if it matches none.
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
    return all(name in whole and _equal(whole[name], value) for name, value in part.items())


def _equal(one: Scalar, other: Scalar) -> bool:
    """Compare two values; unlike in Python, 1 and true differ."""
    return one == other and isinstance(one, bool) is isinstance(other, bool)


def format_values(values: Mapping[str, Scalar]) -> str:
    """Format the values for the key of a matrix job: "3.11, linux"."""
    return ", ".join(as_text(value) for value in values.values())
