"""What travels with a job for workers alone: its caller's own time limit and back-off, and the trace it belongs to."""

from __future__ import annotations

import sys

import msgspec

from backstay.engine.base import UNREADABLE
from backstay.errors import CorruptRecord
from backstay.job.api.retry import Backoff
from backstay.job.model import Job


class Fill(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """A place in the arguments, and whose result goes there: of one chain, or of several as a list."""

    place: tuple[str | int, ...]
    chains: tuple[str, ...]
    #: True: a list of all results, also of none or one.
    many: bool = False
    #: The way into the result: `output["path"]`.
    item: tuple[str | int, ...] = ()


class Meta(msgspec.Struct, frozen=True, omit_defaults=True, gc=False):
    """Empty fields mean: as the definition says."""

    timeout: float = 0.0
    backoff: Backoff | None = None
    #: W3C trace context and whatever else propagators and middleware put in.
    trace: dict[str, str] = {}
    #: The cron entry that made it.
    cron: str = ""
    #: What it is called in its workflow run: "build", "test (3.11)".
    key: str = ""
    #: Arguments that are results of others: see `fills.py`.
    fills: tuple[Fill, ...] = ()


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


def key_of(job: Job) -> str:
    """What it is called in its run; its id, where it has no name or that cannot be read."""
    try:
        return unpack(job.meta).key or job.id
    except CorruptRecord:
        return job.id


def trace_context() -> dict[str, str]:
    """The caller's trace, if it has one. OpenTelemetry is asked only where the program uses it."""
    if "opentelemetry.propagate" not in sys.modules and "opentelemetry.trace" not in sys.modules:
        return {}
    from opentelemetry import propagate

    carrier: dict[str, str] = {}
    propagate.inject(carrier)
    return carrier
