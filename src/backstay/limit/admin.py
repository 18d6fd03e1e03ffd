"""Inspect rate limits and reset keys from outside."""

from __future__ import annotations

from backstay.engine.base import Read, Scan
from backstay.errors import CorruptRecord
from backstay.limit.flows import RETRIES, reset
from backstay.limit.machine import LIMIT
from backstay.limit.spec import RecordName, parse_record_name, quote
from backstay.limit.view import Use, use
from backstay.runtime import validation
from backstay.runtime.core import Core
from backstay.runtime.lost_replies import retry_idempotent


async def list_uses(core: Core, name: str) -> list[Use]:
    """List the keys with a count above zero, of one limit or, if its name is empty, of all limits. It scans every
    record: use it in tools, not on a hot path.
    """
    found = [await _read_use(core, record, parsed) for record, parsed in await _records(core, name)]
    return [one for one in found if one is not None and (one.trouble or any(rate.count for rate in one.rates))]


async def reset_key(core: Core, name: str, key: str) -> int:
    """Delete the records of a key in a limit, for every algorithm and rate. Return how many there were."""
    validation.check_name(key, "key")
    records = [record for record, parsed in await _records(core, validation.check_name(name)) if parsed.key == key]
    for record in records:
        await reset(core, record)
    return len(records)


async def _records(core: Core, name: str) -> list[tuple[str, RecordName]]:
    core.check_open()
    prefix = f"{quote(validation.check_name(name))}:" if name != "" else ""
    names = await retry_idempotent(core.port, Scan(LIMIT, prefix), retries=RETRIES, telemetry=core.telemetry)
    return [(record, parsed) for record in names if (parsed := parse_record_name(record)) is not None]


async def _read_use(core: Core, record: str, parsed: RecordName) -> Use | None:
    try:
        reading = await retry_idempotent(core.port, Read(LIMIT, record), retries=RETRIES, telemetry=core.telemetry)
        return None if reading.state is None else use(parsed, reading.state, reading.now)
    except (CorruptRecord, ValueError) as error:  # do not raise: the other records must still be listed
        return Use(parsed.name, parsed.key, parsed.algorithm, (), trouble=str(error))
