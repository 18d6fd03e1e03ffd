"""Looking at limits from outside, and setting right what went wrong."""

from __future__ import annotations

from backstay.engine.base import Read, Scan
from backstay.errors import CorruptRecord
from backstay.limit.flows import RETRIES, reset
from backstay.limit.machine import LIMIT
from backstay.limit.spec import Place, place, quote
from backstay.limit.view import Use, use
from backstay.runtime import validation
from backstay.runtime.core import Core
from backstay.runtime.flows import persist


async def list_uses(core: Core, name: str) -> list[Use]:
    """Every key that has taken something: of one limit, or (empty) of all. Walks every record: for people."""
    found = [await _look(core, record, where) for record, where in await _records(core, name)]
    return [one for one in found if one is not None and (one.trouble or any(rate.count for rate in one.rates))]


async def reset_key(core: Core, name: str, key: str) -> int:
    """Forget what a key has taken of a limit, by whatever algorithm and rates; answers how many records that were."""
    validation.name(key, "key")
    records = [record for record, where in await _records(core, validation.name(name)) if where.key == key]
    for record in records:
        await reset(core, record)
    return len(records)


async def _records(core: Core, name: str) -> list[tuple[str, Place]]:
    core.check_open()
    prefix = f"{quote(validation.name(name))}:" if name != "" else ""
    names = await persist(core.port, Scan(LIMIT, prefix), retries=RETRIES, telemetry=core.telemetry)
    return [(record, where) for record in names if (where := place(record)) is not None]


async def _look(core: Core, record: str, where: Place) -> Use | None:
    try:
        reading = await persist(core.port, Read(LIMIT, record), retries=RETRIES, telemetry=core.telemetry)
        return None if reading.state is None else use(where, reading.state, reading.now)
    except (CorruptRecord, ValueError) as error:  # one of them: the others are shown all the same
        return Use(where.name, where.key, where.algorithm, (), trouble=str(error))
