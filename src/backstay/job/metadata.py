"""Job metadata that only workers read: the caller's time limit and backoff, trace context, run key, result slots."""

from __future__ import annotations

import sys

import msgspec

from backstay.engine.base import DECODE_ERRORS
from backstay.errors import CorruptRecord
from backstay.job.api.retry import Backoff
from backstay.job.model import Job


class Fill(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """A place in the arguments and the chains whose results a worker puts there: one result, or a list of them."""

    place: tuple[str | int, ...]
    chains: tuple[str, ...]
    #: True: put a list of results there, even for no or one chain.
    many: bool = False
    #: The path to a value inside the result: `output["path"]`.
    item: tuple[str | int, ...] = ()


class Meta(msgspec.Struct, frozen=True, omit_defaults=True, gc=False):
    """A job's metadata. An empty field means: use the value of the job's definition."""

    timeout: float = 0.0
    backoff: Backoff | None = None
    #: W3C trace context, and other entries of propagators and middleware.
    trace: dict[str, str] = {}
    #: The cron entry that enqueued the job.
    cron: str = ""
    #: The job's name in its workflow run: "build", "test (3.11)".
    key: str = ""
    #: Arguments that are results of other jobs: see `inject_results.py`.
    fills: tuple[Fill, ...] = ()


PLAIN = Meta()
_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(Meta).decode


def pack(meta: Meta) -> bytes:
    """Encode metadata; b"" if every field is empty."""
    return b"" if meta == PLAIN else _encode(meta)


def unpack(raw: bytes) -> Meta:
    """Decode metadata. Raises CorruptRecord."""
    if not raw:
        return PLAIN
    try:
        return _decode(raw)
    except DECODE_ERRORS as error:
        raise CorruptRecord(f"the metadata of a job cannot be decoded: {error}") from error


def key_of(job: Job) -> str:
    """Return the job's name in its run; its id if it has no name or the name cannot be decoded."""
    try:
        return unpack(job.meta).key or job.id
    except CorruptRecord:
        return job.id


def trace_context() -> dict[str, str]:
    """Return the caller's trace context, if any. OpenTelemetry is used only if the program has imported it."""
    if "opentelemetry.propagate" not in sys.modules and "opentelemetry.trace" not in sys.modules:
        return {}
    from opentelemetry import propagate

    carrier: dict[str, str] = {}
    propagate.inject(carrier)
    return carrier
