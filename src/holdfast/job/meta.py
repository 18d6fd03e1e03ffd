"""What travels with a job for workers alone: its caller's own time limit and back-off, and the trace it belongs to."""

from __future__ import annotations

import sys

import msgspec

from holdfast.engine.base import UNREADABLE
from holdfast.errors import CorruptRecord
from holdfast.job.retry import Backoff


class Meta(msgspec.Struct, frozen=True, omit_defaults=True):
    """Empty fields mean: as the definition says."""

    timeout: float = 0.0
    backoff: Backoff | None = None
    #: W3C trace context and whatever else propagators and middleware put in.
    trace: dict[str, str] = {}
    #: The cron entry that made it.
    cron: str = ""


PLAIN = Meta()
_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(Meta).decode


def pack(meta: Meta) -> bytes:
    """b"" for a job about which there is nothing to say."""
    return b"" if meta == PLAIN else _encode(meta)


def unpack(raw: bytes) -> Meta:
    if not raw:
        return PLAIN
    try:
        return _decode(raw)
    except UNREADABLE as error:
        raise CorruptRecord(f"what travels with a job cannot be read: {error}") from error


def trace_context() -> dict[str, str]:
    """The caller's trace, if it has one. OpenTelemetry is asked only where the program uses it."""
    if "opentelemetry.propagate" not in sys.modules and "opentelemetry.trace" not in sys.modules:
        return {}
    from opentelemetry import propagate

    carrier: dict[str, str] = {}
    propagate.inject(carrier)
    return carrier
