"""Arguments that are results of other jobs: put in when the job is claimed, from what its blockers came to."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from msgspec.structs import replace

from backstay.errors import BadArgument
from backstay.job.metadata import Fill
from backstay.job.model import Claimed
from backstay.job.worker.execution.outcome import meta_of
from backstay.runtime.serialization import ANYTHING


def filled(job: Claimed) -> Claimed:
    """The job as its handler is called: nothing changes for one without gaps. Raises BadArgument, CorruptRecord."""
    fills = meta_of(job).fills
    if not fills:
        return job
    arguments: Any = ANYTHING.decode(job.args) if job.args else {}
    fill(arguments, fills, job.upstream, job.type)
    return replace(job, args=ANYTHING.encode(arguments))


def fill(arguments: Any, fills: tuple[Fill, ...], upstream: Mapping[str, bytes | None], what: str) -> None:
    """Put results where they belong. What did not complete is None."""
    for one in fills:
        values = [_taken(upstream.get(chain), one, what) for chain in one.chains]
        place = arguments
        for step in one.place[:-1]:
            place = place[step]
        place[one.place[-1]] = values if one.many else values[0]


def _taken(raw: bytes | None, fill: Fill, what: str) -> Any:
    value: Any = ANYTHING.decode(raw) if raw else None
    for step in fill.item:
        if value is None:
            return None
        try:
            value = value[step]
        except (KeyError, IndexError, TypeError) as error:
            raise BadArgument(
                type=what,
                argument=str(fill.place[0]),
                reason=f"the result it comes from has no {step!r} ({type(error).__name__})",
            ) from error
    return value
