"""Encode hints for PostgreSQL's NOTIFY. The channel is hashed to fit an identifier; the payload holds its full name."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence

import msgspec

from backstay.engine.base import Wake
from backstay.engine.postgres.connection.arrays import Texts
from backstay.engine.postgres.connection.wire import Statement
from backstay.errors import ConfigError

#: A NOTIFY payload must be shorter than this (bytes).
LONGEST = 8000
NOTIFY = b"""
SELECT pg_notify(note.channel, note.payload) FROM unnest(%(channels)b, %(payloads)b) AS note (channel, payload)
"""


def wire_channel(channel: str) -> str:
    """Return the PostgreSQL channel for a channel name, hashed because identifiers are limited to 63 bytes."""
    return f"backstay_{hashlib.sha256(channel.encode()).hexdigest()[:40]}"


def encode(wake: Wake) -> str:
    text = msgspec.json.encode((wake.inbox, wake.payload))
    if len(text) >= LONGEST:
        raise ConfigError(
            f"a message on PostgreSQL has at most {LONGEST - 1} bytes together with its channel; this one has"
            f" {len(text)}: publish a reference to the data, or use hub='redis://…'"
        )
    return text.decode()


def decode(text: str) -> Wake | None:
    """Return the hint in a payload; None if another program sent the payload."""
    try:
        return Wake(*msgspec.json.decode(text, type=tuple[str, str]))
    except msgspec.MsgspecError:
        return None


def notify_statement(wakes: Sequence[Wake]) -> Statement:
    """Return one statement that publishes all hints. Send it outside a transaction: inside one, NOTIFY serialises all
    commits of the database.
    """
    channels = Texts([wire_channel(wake.inbox) for wake in wakes])
    return NOTIFY, {"channels": channels, "payloads": Texts([encode(wake) for wake in wakes])}
