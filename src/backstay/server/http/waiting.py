"""Slots for streams and long polls. One caller may use all free slots; when none is free, a caller with fewer slots
takes one from the caller with the most. So no caller can keep the others from waiting.
"""

from __future__ import annotations

import asyncio

from backstay.server.http.problem import Refusal

#: The Retry-After header of a refusal, in seconds.
RETRY_AFTER = "5"


class WaitingSlot:
    """The right of one request to wait. `revoked` resolves when another caller needs the slot: the request must end."""

    __slots__ = ("caller", "revoked")

    def __init__(self, caller: str) -> None:
        self.caller = caller
        self.revoked: asyncio.Future[None] = asyncio.get_running_loop().create_future()


class WaitingSlots:
    """The slots of one server process, counted by caller. Runs on the event loop only."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        #: The slots of each caller, the newest last. Callers without a slot are not listed.
        self._slots: dict[str, dict[WaitingSlot, None]] = {}
        self.count = 0

    def take(self, caller: str) -> WaitingSlot:
        """Take a slot for a request that is about to wait. Raises Refusal (503) when all slots are in use and no other
        caller has more than one slot above this caller's.
        """
        if self.count >= self._limit and not self._revoke_one(caller):
            raise Refusal(
                503, "too many streams and long polls are open; try again later", headers={"retry-after": RETRY_AFTER}
            )
        slot = WaitingSlot(caller)
        self._slots.setdefault(caller, {})[slot] = None
        self.count += 1
        return slot

    def free(self, slot: WaitingSlot) -> None:
        """Return a slot. Safe to call for a revoked one."""
        mine = self._slots.get(slot.caller)
        if mine is None or slot not in mine:
            return
        del mine[slot]
        self.count -= 1
        if not mine:
            del self._slots[slot.caller]

    def _revoke_one(self, caller: str) -> bool:
        """Revoke the newest slot of the caller with the most slots, unless it has hardly more than this caller: else
        two callers would revoke each other's slots in turn. Returns whether a slot became free.
        """
        if not self._slots:
            return False
        most = max(self._slots, key=lambda one: len(self._slots[one]))
        if len(self._slots[most]) <= len(self._slots.get(caller, ())) + 1:
            return False
        slot = next(reversed(self._slots[most]))
        slot.revoked.set_result(None)
        self.free(slot)
        return True


def slot_revoked() -> Refusal:
    return Refusal(
        503,
        "other callers needed this request's place among the open streams and long polls; try again later",
        headers={"retry-after": RETRY_AFTER},
    )
