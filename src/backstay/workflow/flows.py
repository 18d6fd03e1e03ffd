"""Operations on workflows and runs, shared by both APIs: store, start, read, wait, cancel, retry."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping, Sequence
from functools import partial
from typing import Any

from msgspec.structs import replace

from backstay.engine.base import Op
from backstay.errors import (
    EngineUnavailable,
    JobNotFound,
    OutcomeUnknown,
    RunNotFound,
    RunTooLarge,
    WorkflowError,
    WorkflowNotFound,
)
from backstay.job.api.announcer import ANNOUNCER
from backstay.job.api.chain_log import ChainLog
from backstay.job.api.manual_retry import retry_job
from backstay.job.api.registry import JOB_TYPES
from backstay.job.flows import EAGER, LOG_PAGE, LONGEST_LOG, fetch_job, send
from backstay.job.ids import shard_of
from backstay.job.model import Job, JobResult, LogLine, State
from backstay.job.run_model import FINISHED, Definition, NewRun, Run, RunEvent, RunStatus
from backstay.job.store import JOB_STORE
from backstay.job.view import decode_plain
from backstay.runtime.core import Core
from backstay.runtime.serialization import PLAIN_CODEC, escape_surrogates
from backstay.workflow import definition as definitions
from backstay.workflow.api.mixin import WORKFLOWS
from backstay.workflow.api.run_waiter import RUN_END_WAITERS, RUN_EVENT_WAITERS, RunWaiter
from backstay.workflow.definition import Workflow
from backstay.workflow.planning.plan import QUICK, estimate_cost, plan_run
from backstay.workflow.view import (
    RunInfo,
    RunJobInfo,
    WorkflowInfo,
    has_only_initial_jobs,
    iter_keyed_jobs,
    read_run_doc,
    run_info,
    run_jobs,
    workflow_info,
)

#: How many jobs, or events, one store call reads.
PAGE = 1000
#: How many results of jobs one store call reads.
RESULTS = 5000


# ── definitions ──


async def put(core: Core, workflow: Workflow) -> Definition:
    """Store a workflow as its next version, unless it equals the newest version."""
    core.check_open()
    raw = definitions.pack(workflow)
    if len(raw) > definitions.LARGEST:
        raise RunTooLarge(what=f"the definition of workflow {workflow.name!r}", limit=definitions.LARGEST, unit="bytes")
    found = await send(core, core.services.get(JOB_STORE).put_definition(workflow.name, definitions.digest(raw), raw))
    core.telemetry.emit("workflow.stored", workflow=workflow.name, version=found.version)
    return found


async def get_definition(core: Core, name: str, version: int = 0) -> Definition:
    """Return one version of a workflow; 0: the newest. Raises WorkflowNotFound."""
    core.check_open()
    found = await send(core, core.services.get(JOB_STORE).get_definition(name, version))
    if found is None:
        raise WorkflowNotFound(workflow=name, version=version)
    return found


async def list_workflows(core: Core, after: str, limit: int) -> list[WorkflowInfo]:
    core.check_open()
    op = core.services.get(JOB_STORE).list_definitions(after=after, limit=limit)
    return [workflow_info(one) for one in await send(core, op)]


# ── runs ──


async def start_by_name(
    core: Core,
    name: str,
    inputs: Mapping[str, Any],
    version: int,
    trigger: str,
    run_id: str = "",
    *,
    in_thread: Callable[[Callable[[], NewRun]], Awaitable[NewRun]] | None = None,
) -> Run:
    """Start a workflow that this program defines, or else a stored one. The caller may choose `run_id` for idempotency:
    two calls with the same id start one run. `in_thread`: runs a function outside the event loop; a server plans large
    runs with it. Raises WorkflowNotFound, BadInput, RunTooLarge.
    """
    known = core.services.get(WORKFLOWS).get(name)
    if known is not None and not version:
        return await known.begin((), dict(inputs), trigger, run_id)
    found = await get_definition(core, name, version)
    workflow = definitions.unpack(found.doc)
    if workflow.source == "python":
        raise WorkflowError(
            f"workflow {name!r} is defined in Python ({workflow.function}): start it from a program that imports it"
        )
    plan = partial(plan_run, core, workflow, inputs, version=found.version, trigger=trigger, run_id=run_id)
    size = len(found.doc) + sum(len(value) for value in inputs.values() if isinstance(value, str))
    if in_thread is None or estimate_cost(workflow, size) <= QUICK:
        return await start(core, plan())
    return await start(core, await in_thread(plan))


async def start(core: Core, new: NewRun) -> Run:
    """Store a run with all of its jobs, and announce the claimable ones to workers."""
    core.check_open()
    run = await send(core, core.services.get(JOB_STORE).start_run(new))
    core.telemetry.emit("run.started", id=run.id, workflow=run.workflow, jobs=len(new.jobs))
    ready: dict[str, int] = {}
    for job in new.jobs:
        if not job.after and not job.delay:
            ready[job.type] = ready.get(job.type, 0) + 1
    core.services.get(ANNOUNCER).announce(ready)
    if (run_eagerly := core.services.find(EAGER)) is not None:
        await run_eagerly()
    return run


def validate_run_id(core: Core, run_id: str) -> str:
    """Return the id. Raises RunNotFound if the id is malformed, or if the shard number in it does not exist."""
    try:
        shard = shard_of(run_id)
    except ValueError:
        shard = -1
    if not 0 <= shard < core.services.get(JOB_STORE).shards:
        raise RunNotFound(run_id=run_id)
    return run_id


async def _send_for_run(core: Core, run_id: str, op: Op[Run | None]) -> Run:
    run = await send(core, op)
    if run is None:
        raise RunNotFound(run_id=run_id)
    return run


async def get_run(core: Core, run_id: str, *, doc: bool = True) -> Run:
    """Return the current state of a run; doc=False leaves out its document. Raises RunNotFound."""
    core.check_open()
    return await _send_for_run(
        core, run_id, core.services.get(JOB_STORE).get_run(validate_run_id(core, run_id), doc=doc)
    )


async def list_runs(core: Core, workflow: str, status: RunStatus | None, before: str, limit: int) -> list[RunInfo]:
    core.check_open()
    op = core.services.get(JOB_STORE).list_runs(workflow=workflow, status=status, before=before, limit=limit)
    return [run_info(run) for run in await send(core, op)]


async def cancel(core: Core, run_id: str, reason: str) -> Run:
    """Cancel a run: its running jobs are asked to stop, its other open jobs are cancelled. Raises RunNotFound."""
    core.check_open()
    op = core.services.get(JOB_STORE).cancel_run(validate_run_id(core, run_id), escape_surrogates(reason))
    return await _send_for_run(core, run_id, op)


async def rerun_failed(core: Core, run_id: str) -> Run:
    """Retry all failed and cancelled jobs of a finished run. Raises RunNotFound."""
    core.check_open()
    run = await _send_for_run(core, run_id, core.services.get(JOB_STORE).rerun_failed(validate_run_id(core, run_id)))
    await _announce_pending(core, run_id)
    return run


async def retry(core: Core, run_id: str, key: str) -> State:
    """Retry one job of a run now. If the job is an item of a map, its failure made the map's gather job fail, too (the
    internal job that collects the results of all items). Then the gather job is also retried. Raises RunNotFound,
    JobNotFound, RetryRefused.
    """
    found = await list_run_jobs(core, run_id)
    job = _find_by_key(found, run_id, key)
    soft = {other.info.chain for other in found if other.soft}
    state = await retry_job(core, await fetch_job(core, job.id), job.key, soft=soft)
    for other in found:
        # `other` is the failed gather job of the map to which the retried job belongs. It reads the results of the
        # items when it starts, so it may be retried after the item.
        if other.is_internal and other.key == job.job and other is not job and other.state == "failed":
            await retry_job(core, await fetch_job(core, other.id), other.key, soft=soft)
    await _announce_pending(core, run_id)
    return state


async def _announce_pending(core: Core, run_id: str) -> None:
    """Announce the run's claimable jobs to workers."""
    ready: dict[str, int] = {}
    for job in await send(core, core.services.get(JOB_STORE).list_jobs(run=run_id, state="pending", limit=PAGE)):
        ready[job.type] = ready.get(job.type, 0) + 1
    core.services.get(ANNOUNCER).announce(ready)
    if ready and (run_eagerly := core.services.find(EAGER)) is not None:
        await run_eagerly()


# ── jobs ──


async def list_job_rows(core: Core, run_id: str) -> list[Job]:
    """Read all jobs of a run, newest first."""
    found: list[Job] = []
    while True:
        before = found[-1].id if found else ""
        page = await send(core, core.services.get(JOB_STORE).list_jobs(run=run_id, before=before, limit=PAGE))
        found += page
        if len(page) < PAGE:
            return found


async def list_results(core: Core, run_id: str) -> list[JobResult]:
    """Read the results of all jobs of a run, newest first."""
    found: list[JobResult] = []
    while True:
        before = found[-1].id if found else ""
        page = await send(core, core.services.get(JOB_STORE).results(run_id, before=before, limit=RESULTS))
        found += page
        if len(page) < RESULTS:
            return found


async def list_run_jobs(core: Core, run_id: str) -> list[RunJobInfo]:
    """Return the jobs of a run in the order of its definition. Raises RunNotFound."""
    run = await get_run(core, run_id)
    return run_jobs(read_run_doc(run), await list_job_rows(core, run_id))


async def find_job(core: Core, run_id: str, key: str) -> RunJobInfo:
    """Find a job of a run. `key`: the job's key, its id, the id of its chain or, if none of these matches, its display
    name. Raises RunNotFound, JobNotFound.
    """
    return _find_by_key(await list_run_jobs(core, run_id), run_id, key)


def _find_by_key(found: list[RunJobInfo], run_id: str, key: str) -> RunJobInfo:
    for job in found:
        if key in (job.key, job.id, job.info.chain):
            return job
    for job in found:
        if key == job.name:
            return job
    raise JobNotFound(job_id=key, run_id=run_id, known=tuple(job.key for job in found))


async def read_logs(core: Core, run_id: str, key: str, after: int) -> list[Any]:
    """Read the log of a job of a run. Raises RunNotFound, JobNotFound."""
    job = await find_job(core, run_id, key)
    return await read_chain_logs(core, job.info.chain, after)


async def read_chain_logs(core: Core, chain: str, after: int) -> list[LogLine]:
    """Read the log of a chain: the logs of its jobs, joined. Starts after line number `after`; at most LONGEST_LOG
    lines.
    """
    log = ChainLog(core, chain)
    lines: list[LogLine] = []
    while len(lines) < LONGEST_LOG and (page := await log.read(after, LOG_PAGE)):
        lines += page
        after = page[-1].seq
    return lines


async def collect_outputs(core: Core, run: Run) -> dict[str, Any]:
    """Return the result of each completed job by key: its return value, or a command's outputs by name. The jobs of a
    matrix or a map also appear as a list under their common key.
    """
    values: dict[str, Any] = {}
    together: dict[str, list[Any]] = {}
    doc = read_run_doc(run)
    found: Sequence[Job | JobResult] = await list_results(core, run.id)
    # `list_results` does not return the jobs' keys. The run's document has the keys of the jobs that it started with.
    # For jobs that were added later, read the full rows, which have the keys.
    if not has_only_initial_jobs(doc, found):
        found = await list_job_rows(core, run.id)
    for key, job, row in iter_keyed_jobs(doc, found):
        done = row.state == "completed"
        value = _decode_result(core, row) if done else None
        if done:
            values[key] = value
        group = job.job if key == job.key else job.key
        if group not in ("", key):
            together.setdefault(group, []).append(value)
    return {**together, **values}


def _decode_result(core: Core, row: Job | JobResult) -> Any:
    raw = row.result or b""
    known = core.services.get(JOB_TYPES).get(row.type)
    return decode_plain(raw) if known is None else known.decode_result(raw)


# ── waiting ──


async def wait_finished(core: Core, run_id: str, timeout: float | None) -> Run:
    """Wait until the run has ended, and return it. Raises ResultTimeout, RunNotFound."""
    core.check_open()
    waiter = RunWaiter(core, validate_run_id(core, run_id), timeout, core.services.get(RUN_END_WAITERS))
    doc: bytes | None = None
    try:
        while True:
            waiter.rearm()
            try:
                run = await get_run(core, run_id, doc=doc is None)  # read the document once: it may be large
            except (OutcomeUnknown, EngineUnavailable) as error:
                await waiter.pause_after_error(error)
                continue
            doc = run.doc if doc is None else doc
            if run.status in FINISHED:
                return replace(run, doc=doc)
            await waiter.wait_for_change(run.status)
    finally:
        waiter.close()


async def stream_events(core: Core, run_id: str, after: int, *, follow: bool) -> AsyncGenerator[RunEvent, None]:
    """Yield the events of a run after event number `after`, each once and in order. `follow`: wait for more until the
    run has ended and all its events were yielded. Raises RunNotFound.
    """
    core.check_open()
    waiter = RunWaiter(core, validate_run_id(core, run_id), None, core.services.get(RUN_EVENT_WAITERS))
    try:
        while True:
            waiter.rearm()
            try:
                # Read the run before its events: if the run has ended, the events read after it include the last one.
                run = await get_run(core, run_id, doc=False)
                page = await send(core, core.services.get(JOB_STORE).run_events(run_id, after, PAGE))
            except (OutcomeUnknown, EngineUnavailable) as error:
                await waiter.pause_after_error(error)
                continue
            for event in page:
                after = event.seq
                yield event
            if len(page) == PAGE:
                continue
            if not follow or (run.status in FINISHED and after >= run.events):
                return
            if not page:
                await waiter.wait_for_change(run.status)
    finally:
        waiter.close()


def to_plain_inputs(values: Mapping[str, Any]) -> dict[str, Any]:
    """Convert arguments to what the run's document stores: plain data, or `str()` of what has no plain form."""
    answer: dict[str, Any] = {}
    for name, value in values.items():
        try:
            answer[name] = decode_plain(PLAIN_CODEC.encode(value))
        except (TypeError, ValueError, OverflowError):
            answer[name] = str(value)
    return answer
