"""Trying one job again; and, where its store leaves it as it is, why."""

from __future__ import annotations

from collections.abc import Collection

from backstay.errors import JobNotFound, RetryRefused
from backstay.job.api.registry import store_of
from backstay.job.flows import send
from backstay.job.metadata import key_of
from backstay.job.model import Job, State
from backstay.runtime.core import Core

#: How many jobs of a run are looked at, of each kind of end, for those that are to blame.
LOOK = 1000
BAD: tuple[State, ...] = ("failed", "cancelled", "skipped")


async def trigger(core: Core, job: Job, name: str = "", *, soft: Collection[str] = ()) -> State:
    """Again, now, with all its attempts: the state it has then. `job` as it was before; `name`: what it is called;
    `soft`: chains whose failure holds nobody up. Raises JobNotFound, RetryRefused.
    """
    state = await send(core, store_of(core).trigger(job.id))
    if state is None:
        raise JobNotFound(job_id=job.id)
    if job.run and state == job.state and state in BAD:
        await _refuse(core, job, name or key_of(job), soft)
    return state


async def _refuse(core: Core, job: Job, name: str, soft: Collection[str]) -> None:
    """Its store has left it as it is."""
    needs: dict[str, str] = {}
    run = await send(core, store_of(core).get_run(job.run, doc=False))
    if run is not None and run.cancel_requested and not run.finished:
        reason = "its run is being cancelled; wait until that has ended"
    elif job.state == "failed":  # so it has by now, once more
        return
    else:
        needs = await _to_blame(core, job, soft)
        reason = "" if needs else "it is for when something that it needs fails, and nothing has"
    raise RetryRefused(job_id=job.id, name=name, state=job.state, needs=needs, reason=reason)


async def _to_blame(core: Core, job: Job, soft: Collection[str]) -> dict[str, str]:
    """What it needs and did not succeed; of what was skipped itself, the reasons for that."""
    ended: dict[str, Job] = {}
    for state in BAD:
        page = await send(core, store_of(core).list_jobs(run=job.run, state=state, limit=LOOK))
        ended.update((found.chain or found.id, found) for found in page)
    needs: dict[str, str] = {}
    seen: set[str] = set()
    todo = [*job.after]
    while todo:
        chain = todo.pop(0)
        found = ended.get(chain)
        if chain in seen or found is None or (chain in soft and found.state == "failed"):
            continue
        seen.add(chain)
        further = [other for other in found.after if other in ended] if found.state == "skipped" else []
        todo += further
        if not further:
            needs[key_of(found)] = found.state
    return needs
