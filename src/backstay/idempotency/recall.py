"""An outcome by a plain GET, where the engine lets it go by itself when its time is over. See `complete.lua`."""

from __future__ import annotations

from backstay.engine.base import UNREADABLE
from backstay.idempotency.machine import IDEMPOTENCY, Done

#: In front of the reply: when it ends (16 digits), and its fingerprint (64 characters).
ENDS, HEAD = 16, 80


def recalled(kept: bytes | None, fingerprint: str) -> Done | None:
    """What a `Begin` would answer. None: ask it; there is no outcome, or it is of another call, or damaged."""
    if kept is None or len(kept) <= HEAD or (fingerprint and kept[ENDS:HEAD] != fingerprint.encode()):
        return None
    try:
        done = IDEMPOTENCY.decode_reply(kept[HEAD:])
    except UNREADABLE:
        return None
    return done if type(done) is Done else None
