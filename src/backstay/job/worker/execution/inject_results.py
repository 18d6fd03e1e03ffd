"""Inject the results of upstream jobs into the arguments of a workflow run's job that a worker has claimed."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from msgspec.structs import replace

from backstay.errors import BadArgument
from backstay.job.exchange import Claimed
from backstay.job.metadata import Fill
from backstay.job.worker.execution.outcome import read_meta
from backstay.runtime.serialization import PLAIN_CODEC


def inject_results(job: Claimed) -> Claimed:
    """Return the job with the results of its blockers put into its arguments; the same job if no argument refers to a
    result. Raises BadArgument, CorruptRecord.
    """
    fills = read_meta(job).fills
    if not fills:
        return job
    arguments: Any = PLAIN_CODEC.decode(job.args) if job.args else {}
    put_results(arguments, fills, job.upstream, job.type)
    return replace(job, args=PLAIN_CODEC.encode(arguments))


def put_results(arguments: Any, fills: tuple[Fill, ...], upstream: Mapping[str, bytes | None], what: str) -> None:
    """Put the results of upstream chains into `arguments`, in place; None for a chain that did not complete. `what`:
    the job type, for the error message. Raises BadArgument.
    """
    for one in fills:
        values = [_extract(upstream.get(chain), one, what) for chain in one.chains]
        place = arguments
        for step in one.place[:-1]:
            place = place[step]
        place[one.place[-1]] = values if one.many else values[0]


def _extract(raw: bytes | None, fill: Fill, what: str) -> Any:
    value: Any = PLAIN_CODEC.decode(raw) if raw else None
    for step in fill.item:
        if value is None:
            return None
        try:
            value = value[step]
        except (KeyError, IndexError, TypeError) as error:
            raise BadArgument(
                type=what,
                argument=str(fill.place[0]),
                reason=f"the upstream result has no {step!r} ({type(error).__name__})",
            ) from error
    return value
