"""Positions on n8n's canvas for the nodes that patches add: close to related nodes, without overlaps.

A lock's nodes use the row of the triggers and the rows below, except Acquire, which is one row above. A limit's nodes
use rows above all others. So adding or removing a lock never moves a limit's nodes, and the other way round.
"""

from __future__ import annotations

from collections.abc import Collection

from backstay.n8n.model import N8nWorkflow

COLUMN = 220
ROW = 180
#: Two nodes that are closer than this in both directions overlap: a node is 100 units wide, with its name below.
_NEAR_X, _NEAR_Y = 160, 140
#: A limit's nodes are two rows above the others, because the row in between is for a lock's Acquire node.
_LIMIT_ROWS = 2


class Placement:
    """Allocates free positions on one workflow's canvas. Free means: no node of the user is there, and the position has
    not been allocated. The nodes `ours`, which patches added, do not count.
    """

    def __init__(self, workflow: N8nWorkflow, ours: Collection[str] = (), *, top: float | None = None) -> None:
        self._taken = [node.position for node in workflow.nodes if not node.is_note and node.name not in ours]
        starts = [node.position for node in workflow.triggers] or [(0, 0)]
        self._left = max(x for x, _ in starts)
        self._top = min(y for _, y in starts)
        #: The top row of all nodes, including body nodes that moved to a sub-workflow and return when the lock is
        #: removed.
        self._highest = min([y for _, y in self._taken] + ([] if top is None else [top]), default=0)

    def take(self, column: float, row: float = 0) -> list[int]:
        """Allocate the position `column` columns to the right of the rightmost trigger and `row` rows below the topmost
        one. If it is occupied, allocate the next free position below it.
        """
        x, y = round(self._left + column * COLUMN), round(self._top + row * ROW)
        while any(abs(x - other) < _NEAR_X and abs(y - level) < _NEAR_Y for other, level in self._taken):
            y += ROW
        self._taken.append((x, y))
        return [x, y]

    def above(self, column: float, row: float = 0) -> list[int]:
        """Return a position for a node of a limit, in the rows above all other nodes. Only a limit's nodes use these
        rows, so the position needs no check.
        """
        return [round(self._left + column * COLUMN), round(self._highest - (_LIMIT_ROWS + row) * ROW)]
