"""Jobs behind those they need; and the circle, where there is one."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from graphlib import CycleError, TopologicalSorter


def in_order(needs: Mapping[str, Sequence[str]]) -> list[str]:
    """Every job after those it needs. Raises graphlib.CycleError."""
    return list(TopologicalSorter(needs).static_order())


def circle(needs: Mapping[str, Sequence[str]]) -> list[str]:
    """Jobs that wait for one another in a circle, the first one again at the end; empty: there is none."""
    try:
        TopologicalSorter(needs).prepare()
    except CycleError as error:
        # It names each before the one that needs it; people read it the other way round.
        return list(reversed(error.args[1]))
    return []
