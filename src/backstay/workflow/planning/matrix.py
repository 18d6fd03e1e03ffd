"""Expand a matrix into one set of values per job."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import product

from backstay.errors import RunTooLarge
from backstay.workflow.definition import Matrix, Scalar
from backstay.workflow.expressions.expression import as_text

#: Limits of a matrix: jobs, entries of `exclude`, names of values, and values of all its jobs together.
MOST, MOST_EXCLUDES, MOST_NAMES, MOST_VALUES = 1000, 1000, 100, 100_000
#: Limit of the values of one job as text, in characters: they are part of the job's key.
LONGEST_VALUES = 500

Values = dict[str, Scalar]
#: An axis and a value of it. The last element is whether the value is a boolean: unlike in Python, 1 and true differ.
_Place = tuple[str, Scalar, bool]


def value_names(matrix: Matrix) -> set[str]:
    """Return the names of the values that jobs of the matrix may have."""
    return set(matrix.axes).union(*matrix.include)


def count_combinations(matrix: Matrix) -> int:
    """Count the combinations before `exclude`, without building them."""
    count = 1 if matrix.axes else 0
    for values in matrix.axes.values():
        count *= len(values)
    return count + len(matrix.include)


def expand(matrix: Matrix) -> list[Values]:
    """Build all combinations of the axes' values, and drop those that have all values of an `exclude`. Then apply each
    `include`: its values are added to every combination that has the same values on the axes that the `include` names.
    If there is no such combination, the `include` becomes a combination of its own. Raises RunTooLarge.

    The cost grows with the entries of the matrix and the values of its jobs, not with combinations times entries.
    """
    _check_size(matrix)
    axes = list(matrix.axes)
    made: list[Values] = (
        [dict(zip(axes, values, strict=True)) for values in product(*matrix.axes.values())] if axes else []
    )
    combinations = _Combinations(made)
    excluded = 0
    for entry in matrix.exclude:
        excluded |= combinations.matching(entry)
    made = [one for place, one in enumerate(made) if not excluded >> place & 1] if excluded else made
    if not matrix.include:
        return made
    combinations = _Combinations(made)
    count = len(made)
    left = MOST_VALUES - sum(map(len, made))
    for extra in matrix.include:
        fixed = {name: value for name, value in extra.items() if name in matrix.axes}
        matches = combinations.matching(fixed)
        if not matches:
            made.append(dict(extra))
        elif len(fixed) < len(extra):
            left -= len(extra) * matches.bit_count()
            if left < 0:
                raise _too_many_values()
            for place in range(count):
                if matches >> place & 1:
                    made[place].update(extra)
    return made


def _check_size(matrix: Matrix) -> None:
    """Check what the reader of documents checks, too: a definition may be stored by another version."""
    if count_combinations(matrix) > MOST or len(matrix.exclude) > MOST_EXCLUDES:
        raise RunTooLarge(what="a matrix", limit=MOST, unit="jobs or entries of exclude")
    if len(value_names(matrix)) > MOST_NAMES:
        raise RunTooLarge(what="a matrix", limit=MOST_NAMES, unit="names of values")


def _too_many_values() -> RunTooLarge:
    return RunTooLarge(what="the jobs of a matrix", limit=MOST_VALUES, unit="values together")


class _Combinations:
    """Finds combinations by their values. A set of combinations is an integer with one bit for each of them."""

    def __init__(self, combinations: list[Values]) -> None:
        self._all = (1 << len(combinations)) - 1
        self._with: dict[_Place, int] = {}
        for place, one in enumerate(combinations):
            bit = 1 << place
            for name, value in one.items():
                key = (name, value, isinstance(value, bool))
                self._with[key] = self._with.get(key, 0) | bit

    def matching(self, values: Mapping[str, Scalar]) -> int:
        """Return the combinations that have all these values; without values, all combinations."""
        found = self._all
        for name, value in values.items():
            found &= self._with.get((name, value, isinstance(value, bool)), 0)
        return found


def format_values(values: Mapping[str, Scalar]) -> str:
    """Format the values for the key of a matrix job: "3.11, linux"."""
    return ", ".join(as_text(value) for value in values.values())
