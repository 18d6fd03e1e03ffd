"""Retry one job manually; if the store refuses, raise an error that states the reason."""

from __future__ import annotations

from collections.abc import Collection

from backstay.errors import JobNotFound, RetryRefused
from backstay.job.flows import send
from backstay.job.metadata import key_of
from backstay.job.model import Job, State
from backstay.job.store import JOB_STORE
from backstay.runtime.core import Core

#: How many jobs of a run are read in each unsuccessful state, to find out why the store refused to retry a job.
SEARCH_LIMIT = 1000
UNSUCCESSFUL: tuple[State, ...] = ("failed", "cancelled", "skipped")


async def retry_job(core: Core, job: Job, name: str = "", *, soft: Collection[str] = ()) -> State:
    """Retry a job now, with its attempts counted from zero. Returns its new state. Raises JobNotFound, RetryRefused.

    job: the job as it was stored before the retry.
    name: the job's name in error messages; "": its name in its run, or its id.
    soft: ids of chains whose failure is tolerated: jobs that depend on them run nevertheless.
    """
    state = await send(core, core.services.get(JOB_STORE).trigger(job.id))
    if state is None:
        raise JobNotFound(job_id=job.id)
    if job.run and state == job.state and state in UNSUCCESSFUL:
        await _refuse(core, job, name or key_of(job), soft)
    return state


async def _refuse(core: Core, job: Job, name: str, soft: Collection[str]) -> None:
    """Raise RetryRefused with the reason why the store has not retried the job."""
    needs: dict[str, str] = {}
    run = await send(core, core.services.get(JOB_STORE).get_run(job.run, doc=False))
    if run is not None and run.cancel_requested and not run.finished:
        reason = "its run is being cancelled; wait until it has finished"
    elif job.state == "failed":  # a failed job is never refused: it was retried and has failed again since
        return
    else:
        needs = await _failed_dependencies(core, job, soft)
        reason = "" if needs else "it runs only if a job that it depends on fails, and none has"
    raise RetryRefused(job_id=job.id, name=name, state=job.state, needs=needs, reason=reason)


async def _failed_dependencies(core: Core, job: Job, soft: Collection[str]) -> dict[str, str]:
    """Return the jobs that this job depends on and that did not succeed: the state of each, by name. A dependency that
    was itself skipped is left out; the jobs because of which it was skipped are returned instead.
    """
    ended: dict[str, Job] = {}
    for state in UNSUCCESSFUL:
        page = await send(core, core.services.get(JOB_STORE).list_jobs(run=job.run, state=state, limit=SEARCH_LIMIT))
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
