"""Enqueue the jobs of due cron entries.

Any number of processes may tick at once: the store enqueues only one job per entry and moment.
"""

from __future__ import annotations

from datetime import datetime
from typing import Any

from backstay.job.api.announcer import ANNOUNCER
from backstay.job.api.definition import BaseJobType
from backstay.job.api.registry import JOB_TYPES
from backstay.job.flows import send
from backstay.job.model import Tick
from backstay.job.scheduler.cron import Cron, parse_cron
from backstay.job.store import JOB_STORE
from backstay.runtime.core import Core
from backstay.runtime.lease import instant

#: Longest pause between ticks, in seconds, so that new cron entries and corrections of the clock are noticed.
LONGEST_SLEEP = 30.0
#: Shortest pause between ticks, in seconds. A tick that runs slightly before its moment is repeated after this pause.
SHORTEST_SLEEP = 0.01
#: With catch_up="skip", a moment that is more than this many seconds ago counts as missed.
GRACE = 60.0
#: With catch_up="all", one tick enqueues at most this many missed moments.
MOST_CAUGHT_UP = 1000


def cron_entries(core: Core) -> dict[str, tuple[BaseJobType[..., Any], Cron]]:
    """Return the job types with a cron schedule, by name."""
    types = core.services.get(JOB_TYPES)
    return {name: (job, parse_cron(job.cron, job.timezone)) for name, job in types.items() if job.cron}


async def tick(core: Core) -> float:
    """Enqueue the jobs of all cron entries that are due. Returns the seconds until the next tick."""
    entries = cron_entries(core)
    if not entries:
        return LONGEST_SLEEP
    last = await send(core, core.services.get(JOB_STORE).ticks(list(entries)))
    now = instant(core.engine.now())
    wait = LONGEST_SLEEP
    for name, (job, schedule) in entries.items():
        for moment in due_moments(schedule, job.catch_up, instant(last[name]) if name in last else now, now):
            await _enqueue(core, name, job, moment)
        coming = schedule.next(now)
        if coming is not None:
            wait = min(wait, (coming - instant(core.engine.now())).total_seconds())
    return max(wait, SHORTEST_SLEEP)


def due_moments(schedule: Cron, catch_up: str, last: datetime, now: datetime) -> list[datetime]:
    """Return the moments after `last` for which a job is enqueued now.

    catch_up="one": the latest one, however late. "skip": the latest one, unless it is over a minute late. "all": all.
    """
    if catch_up == "all":
        moments: list[datetime] = []
        for moment in schedule.between(last, now):
            moments.append(moment)
            if len(moments) == MOST_CAUGHT_UP:
                break
        return moments
    latest = schedule.previous(now)
    if latest is None or latest <= last:
        return []
    if catch_up == "skip" and (now - latest).total_seconds() > GRACE:
        return []
    return [latest]


async def _enqueue(core: Core, name: str, job: BaseJobType[..., Any], moment: datetime) -> None:
    at = round(moment.timestamp() * 1_000_000)
    made = Tick(name=name, at=at, job=job.new_job((), {}, due=at, cron=name))
    if await send(core, core.services.get(JOB_STORE).tick(made)):
        core.services.get(ANNOUNCER).announce({job.name: 1})
        core.telemetry.emit("cron.tick", name=name, at=at)
