"""Job metadata, which the store does not interpret: the time limit and backoff that a single call sets, the trace
context, the job's name in its run, and which arguments are replaced by results of other jobs (fills).
"""

from __future__ import annotations

import sys

import msgspec

from backstay.engine.base import DECODE_ERRORS
from backstay.errors import CorruptRecord
from backstay.job.api.retry import Backoff
from backstay.job.model import Job


class Fill(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """An argument, or a place inside one, that gets its value from other jobs. `place`: the path to it in the job's
    arguments. `chains`: the chains whose results a worker puts there before it runs the job.
    """

    place: tuple[str | int, ...]
    chains: tuple[str, ...]
    #: True: the place gets the list of all results. False: it gets the result of the only chain.
    many: bool = False
    #: The path to the value inside each result: `("path",)` for `output["path"]`; (): the whole result.
    item: tuple[str | int, ...] = ()


class Meta(msgspec.Struct, frozen=True, omit_defaults=True, gc=False):
    """A job's metadata. If `timeout` or `backoff` is not set, that of the job's definition applies."""

    timeout: float = 0.0
    backoff: Backoff | None = None
    #: W3C trace context of the caller, and entries of other propagators and of middleware.
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
