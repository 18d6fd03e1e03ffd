"""What a caller does with workflows and their runs, written once for both APIs: store, start, look, wait, cancel."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Mapping, Sequence
from typing import Any, cast

from msgspec.structs import replace

from backstay.engine.base import Op
from backstay.errors import (
    EngineUnavailable,
    JobNotFound,
    OutcomeUnknown,
    RunNotFound,
    WorkflowError,
    WorkflowNotFound,
)
from backstay.job.api.announcer import announcer_of
from backstay.job.api.chain_log import ChainLog
from backstay.job.api.definition import BaseJobType
from backstay.job.api.manual_retry import trigger
from backstay.job.api.registry import store_of
from backstay.job.flows import EAGER, LOG_PAGE, LONGEST_LOG, send
from backstay.job.flows import look as look_at_job
from backstay.job.ids import shard_of
from backstay.job.model import Job, JobResult, LogLine, State
from backstay.job.run_model import FINISHED, Definition, NewRun, Run, RunEvent, RunStatus
from backstay.job.view import plain
from backstay.runtime.core import Core
from backstay.runtime.serialization import storable
from backstay.workflow import definition as definitions
from backstay.workflow.api.run_waiter import Vigil
from backstay.workflow.api.run_watchers import enders_of, watchers_of
from backstay.workflow.definition import Workflow
from backstay.workflow.planning.plan import new_run
from backstay.workflow.view import (
    RunInfo,
    RunJobInfo,
    WorkflowInfo,
    all_known,
    doc_of,
    named,
    run_info,
    run_jobs,
    workflow_info,
)

#: Jobs of a run that are read at once, and events.
PAGE = 1000
#: Results of jobs that are read at once.
RESULTS = 5000


# ── definitions ──


async def put(core: Core, workflow: Workflow) -> Definition:
    """The next version, unless it is the newest one already."""
    core.check_open()
    raw = definitions.pack(workflow)
    found = await send(core, store_of(core).put_definition(workflow.name, definitions.digest(raw), raw))
    core.telemetry.emit("workflow.stored", workflow=workflow.name, version=found.version)
    return found


async def definition_of(core: Core, name: str, version: int = 0) -> Definition:
    """Raises WorkflowNotFound."""
    core.check_open()
    found = await send(core, store_of(core).get_definition(name, version))
    if found is None:
        raise WorkflowNotFound(workflow=name, version=version)
    return found


async def list_workflows(core: Core, after: str, limit: int) -> list[WorkflowInfo]:
    core.check_open()
    return [workflow_info(one) for one in await send(core, store_of(core).list_definitions(after=after, limit=limit))]


# ── runs ──


async def start_by_name(
    core: Core, name: str, inputs: Mapping[str, Any], version: int, trigger: str, run_id: str = ""
) -> Run:
    """A workflow of this program's, or one that is stored. `run_id`: made by the caller, so that asking twice makes one
    run. Raises WorkflowNotFound, BadInput.
    """
    known = core.workflows.get(name)
    if known is not None and not version:
        return cast("Run", await known.begin((), dict(inputs), trigger, run_id))
    found = await definition_of(core, name, version)
    workflow = definitions.unpack(found.doc)
    if workflow.source == "python":
        raise WorkflowError(
            f"workflow {name!r} is defined in Python ({workflow.function}): start it where that is imported"
        )
    new = new_run(core, workflow, inputs, version=found.version, trigger=trigger, run_id=run_id)
    return await start(core, new)


async def start(core: Core, new: NewRun) -> Run:
    """Store a run and all of its jobs, and tell workers of those that can be had."""
    core.check_open()
    run = await send(core, store_of(core).start_run(new))
    core.telemetry.emit("run.started", id=run.id, workflow=run.workflow, jobs=len(new.jobs))
    ready: dict[str, int] = {}
    for job in new.jobs:
        if not job.after and not job.delay:
            ready[job.type] = ready.get(job.type, 0) + 1
    announcer_of(core).announce(ready)
    if EAGER in core.notes:
        await core.notes[EAGER]()
    return run


def known_run(core: Core, run_id: str) -> str:
    """Raises RunNotFound for what is no id of this Backstay's."""
    try:
        shard = shard_of(run_id)
    except ValueError:
        shard = -1
    if not 0 <= shard < store_of(core).shards:
        raise RunNotFound(run_id=run_id)
    return run_id


async def _about(core: Core, run_id: str, op: Op[Run | None]) -> Run:
    run = await send(core, op)
    if run is None:
        raise RunNotFound(run_id=run_id)
    return run


async def look(core: Core, run_id: str, *, doc: bool = True) -> Run:
    """The run as it is now. Raises RunNotFound."""
    core.check_open()
    return await _about(core, run_id, store_of(core).get_run(known_run(core, run_id), doc=doc))


async def list_runs(core: Core, workflow: str, status: RunStatus | None, before: str, limit: int) -> list[RunInfo]:
    core.check_open()
    op = store_of(core).list_runs(workflow=workflow, status=status, before=before, limit=limit)
    return [run_info(run) for run in await send(core, op)]


async def cancel(core: Core, run_id: str, reason: str) -> Run:
    """Whatever does not run is cancelled, whatever runs is told to stop. Raises RunNotFound."""
    core.check_open()
    return await _about(core, run_id, store_of(core).cancel_run(known_run(core, run_id), storable(reason)))


async def rerun_failed(core: Core, run_id: str) -> Run:
    """All that failed or was cancelled again, once the run has ended. Raises RunNotFound."""
    core.check_open()
    run = await _about(core, run_id, store_of(core).rerun_failed(known_run(core, run_id)))
    await _announce(core, run_id)
    return run


async def retry(core: Core, run_id: str, key: str) -> State:
    """One job of a run again, now; of a list that was spread, the whole list waits for it again. Raises RunNotFound,
    JobNotFound, RetryRefused.
    """
    found = await jobs(core, run_id)
    job = _find(found, run_id, key)
    soft = {other.info.chain for other in found if other.soft}
    state = await trigger(core, await look_at_job(core, job.id), job.key, soft=soft)
    for other in found:
        # What gathers them has failed because of it. Whichever ends first: it hears of this one as it is by then.
        if other.is_internal and other.key == job.job and other is not job and other.state == "failed":
            await trigger(core, await look_at_job(core, other.id), other.key, soft=soft)
    await _announce(core, run_id)
    return state


async def _announce(core: Core, run_id: str) -> None:
    """Workers are told of what can be had again."""
    ready: dict[str, int] = {}
    for job in await send(core, store_of(core).list_jobs(run=run_id, state="pending", limit=PAGE)):
        ready[job.type] = ready.get(job.type, 0) + 1
    announcer_of(core).announce(ready)
    if ready and EAGER in core.notes:
        await core.notes[EAGER]()


# ── jobs ──


async def rows(core: Core, run_id: str) -> list[Job]:
    """All jobs of a run, newest first."""
    found: list[Job] = []
    while True:
        before = found[-1].id if found else ""
        page = await send(core, store_of(core).list_jobs(run=run_id, before=before, limit=PAGE))
        found += page
        if len(page) < PAGE:
            return found


async def results(core: Core, run_id: str) -> list[JobResult]:
    """What all jobs of a run came to, newest first."""
    found: list[JobResult] = []
    while True:
        before = found[-1].id if found else ""
        page = await send(core, store_of(core).results(run_id, before=before, limit=RESULTS))
        found += page
        if len(page) < RESULTS:
            return found


async def jobs(core: Core, run_id: str) -> list[RunJobInfo]:
    """Raises RunNotFound."""
    run = await look(core, run_id)
    return run_jobs(doc_of(run), await rows(core, run_id))


async def find_job(core: Core, run_id: str, key: str) -> RunJobInfo:
    """A job by its key, or by the id of any job of its chain. Raises RunNotFound, JobNotFound."""
    return _find(await jobs(core, run_id), run_id, key)


def _find(found: list[RunJobInfo], run_id: str, key: str) -> RunJobInfo:
    for job in found:
        if key in (job.key, job.id, job.info.chain):
            return job
    for job in found:
        if key == job.name:
            return job
    raise JobNotFound(job_id=key, run_id=run_id, known=tuple(job.key for job in found))


async def logs(core: Core, run_id: str, key: str, after: int) -> list[Any]:
    """What a job of a run logged. Raises RunNotFound, JobNotFound."""
    job = await find_job(core, run_id, key)
    return await chain_logs(core, job.info.chain, after)


async def chain_logs(core: Core, chain: str, after: int) -> list[LogLine]:
    """What the jobs of a chain logged, as one, behind the line with the number `after`; up to a hundred thousand."""
    log = ChainLog(core, chain)
    lines: list[LogLine] = []
    while len(lines) < LONGEST_LOG and (page := await log.read(after, LOG_PAGE)):
        lines += page
        after = page[-1].seq
    return lines


async def outputs(core: Core, run: Run) -> dict[str, Any]:
    """What each job of a run came to, by key: what it returned, or put out by name. Those that did not complete are
    not there. Jobs that a list was spread over are a list, under the name of all of them.
    """
    values: dict[str, Any] = {}
    together: dict[str, list[Any]] = {}
    doc = doc_of(run)
    found: Sequence[Job | JobResult] = await results(core, run.id)
    if not all_known(doc, found):  # only a whole job knows what it is called
        found = await rows(core, run.id)
    for key, job, row in named(doc, found):
        done = row.state == "completed"
        value = _result(core, row) if done else None
        if done:
            values[key] = value
        group = job.job if key == job.key else job.key
        if group not in ("", key):
            together.setdefault(group, []).append(value)
    return {**together, **values}


def _result(core: Core, row: Job | JobResult) -> Any:
    raw = row.result or b""
    known = core.jobs.get(row.type)
    return plain(raw) if known is None else cast("BaseJobType[..., Any]", known).decode_result(raw)


def _packed(value: Any) -> bytes:
    from backstay.runtime.serialization import ANYTHING

    return ANYTHING.encode(value)


# ── waiting ──


async def ended(core: Core, run_id: str, timeout: float | None) -> Run:
    """The run, once it has ended. Raises ResultTimeout, RunNotFound."""
    core.check_open()
    vigil = Vigil(core, known_run(core, run_id), timeout, enders_of(core))
    doc: bytes | None = None
    try:
        while True:
            vigil.ready()
            try:
                run = await look(core, run_id, doc=doc is None)  # once: it may be large
            except (OutcomeUnknown, EngineUnavailable) as error:
                await vigil.trouble(error)
                continue
            doc = run.doc if doc is None else doc
            if run.status in FINISHED:
                return replace(run, doc=doc)
            await vigil.rest(run.status)
    finally:
        vigil.leave()


async def events(core: Core, run_id: str, after: int, *, follow: bool) -> AsyncGenerator[RunEvent, None]:
    """What happened in a run behind the event with the number `after`, each once and in order; `follow`: until the run
    has ended and everything of it was told. Raises RunNotFound.
    """
    core.check_open()
    vigil = Vigil(core, known_run(core, run_id), None, watchers_of(core))
    try:
        while True:
            vigil.ready()
            try:
                run = await look(core, run_id, doc=False)  # first: what is told afterwards is told by then
                page = await send(core, store_of(core).run_events(run_id, after, PAGE))
            except (OutcomeUnknown, EngineUnavailable) as error:
                await vigil.trouble(error)
                continue
            for event in page:
                after = event.seq
                yield event
            if len(page) == PAGE:
                continue
            if not follow or (run.status in FINISHED and after >= run.events):
                return
            if not page:
                await vigil.rest(run.status)
    finally:
        vigil.leave()


def info(run: Run) -> RunInfo:
    return run_info(run)


def plain_inputs(values: Mapping[str, Any]) -> dict[str, Any]:
    """Arguments as a run remembers them: plain data, or their text."""
    answer: dict[str, Any] = {}
    for name, value in values.items():
        try:
            answer[name] = plain(_packed(value))
        except (TypeError, ValueError, OverflowError):
            answer[name] = str(value)
    return answer
