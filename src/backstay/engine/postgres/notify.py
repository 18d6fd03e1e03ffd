"""How a hint looks on PostgreSQL's wire: the channel hashed to fit an identifier, the payload with the whole name."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence

import msgspec

from backstay.engine.base import Wake
from backstay.engine.postgres.connection.arrays import Texts
from backstay.engine.postgres.connection.wire import Statement
from backstay.errors import ConfigError

#: PostgreSQL takes payloads of fewer bytes than this.
LONGEST = 8000
NOTIFY = b"""
SELECT pg_notify(note.channel, note.payload) FROM unnest(%(channels)b, %(payloads)b) AS note (channel, payload)
"""


def wire_channel(channel: str) -> str:
    """A channel's name on the wire: PostgreSQL allows 63 bytes, so the payload says which one is meant."""
    return f"backstay_{hashlib.sha256(channel.encode()).hexdigest()[:40]}"


def encode(wake: Wake) -> str:
    text = msgspec.json.encode((wake.inbox, wake.payload))
    if len(text) >= LONGEST:
        raise ConfigError(
            f"a message on PostgreSQL has at most {LONGEST - 1} bytes together with its channel; this one has"
            f" {len(text)}: publish a key to where the data is, or use hub='redis://…'"
        )
    return text.decode()


def decode(text: str) -> Wake | None:
    """None: a stranger's."""
    try:
        return Wake(*msgspec.json.decode(text, type=tuple[str, str]))
    except msgspec.MsgspecError:
        return None


def note(wakes: Sequence[Wake]) -> Statement:
    """Tells all who listen, in one statement. Outside a transaction: inside, it serialises all commits."""
    channels = Texts([wire_channel(wake.inbox) for wake in wakes])
    return NOTIFY, {"channels": channels, "payloads": Texts([encode(wake) for wake in wakes])}
