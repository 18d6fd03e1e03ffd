"""Canvas positions for the nodes that patches add: close to related nodes and never overlapping another.

A lock's nodes use the triggers' row and below (Acquire one row above); a limit's nodes use rows above all others. So
adding or removing one never moves the nodes of the other.
"""

from __future__ import annotations

from collections.abc import Collection

from backstay.n8n.model import Workflow

COLUMN = 220
ROW = 180
#: Nodes are about 100 units wide with their name below; nodes closer than this overlap.
_NEAR_X, _NEAR_Y = 160, 140
#: The row above the triggers is reserved for a lock's Acquire node.
_LIMIT_ROWS = 2


class Placement:
    """Allocates free positions on one canvas, ignoring the nodes that a patch added (`ours`). Allocated positions
    stay taken.
    """

    def __init__(self, workflow: Workflow, ours: Collection[str] = (), *, top: float | None = None) -> None:
        self._taken = [node.position for node in workflow.nodes if not node.is_note and node.name not in ours]
        starts = [node.position for node in workflow.triggers] or [(0, 0)]
        self._left = max(x for x, _ in starts)
        self._top = min(y for _, y in starts)
        #: The top row of all nodes, including body nodes that moved to a sub-workflow and will return.
        self._highest = min([y for _, y in self._taken] + ([] if top is None else [top]), default=0)

    def take(self, column: float, row: float = 0) -> list[int]:
        """Allocate a position this many columns after the last trigger, moving down while it is taken."""
        x, y = round(self._left + column * COLUMN), round(self._top + row * ROW)
        while any(abs(x - other) < _NEAR_X and abs(y - level) < _NEAR_Y for other, level in self._taken):
            y += ROW
        self._taken.append((x, y))
        return [x, y]

    def above(self, column: float, row: float = 0) -> list[int]:
        """Return a position in the rows above all other nodes, which are always free."""
        return [round(self._left + column * COLUMN), round(self._highest - (_LIMIT_ROWS + row) * ROW)]
