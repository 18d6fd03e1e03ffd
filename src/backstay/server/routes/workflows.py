"""Routes of workflows: definitions by name, and their latest runs."""

from __future__ import annotations

import hashlib
from asyncio import gather
from functools import partial
from typing import TYPE_CHECKING

import msgspec

from backstay.errors import BadDefinition, CorruptRecord, RunNotFound
from backstay.job.flows import send
from backstay.job.ids import JOB_IDS
from backstay.job.reserved import COMMANDS
from backstay.job.run_model import Definition, Run
from backstay.server.http.problem import Refusal
from backstay.server.http.request import Request
from backstay.server.routes.runs import run_info
from backstay.server.schemas.jobs import STATUSES, ReasonRequest, RunQuery, Status
from backstay.server.schemas.workflows import (
    DefinitionView,
    RunInfo,
    StartRequest,
    VersionQuery,
    Workflow,
    WorkflowsQuery,
)
from backstay.server.views.pages import PageBudget
from backstay.server.views.workflow_jobs import defined_jobs, workflow_jobs
from backstay.workflow import definition as definitions
from backstay.workflow import flows
from backstay.workflow.document.yaml import read

if TYPE_CHECKING:
    from backstay.server.app import Server

#: Definitions per read, and the largest number of definitions that one list request reads.
PAGE, MAX_SCANNED = 100, 10_000
#: How many workflows of a list are read at the same time.
CONCURRENT_READS = 10
#: Choosing the id of a new run is an idempotent call, so that a repeated request starts no second run. This is the
#: lease of that call in seconds: if the server dies during the call, a repeated request waits this long.
RUN_ID_LEASE = 5.0
MEDIA_TYPES = ("application/json", "application/yaml", "application/x-yaml", "text/yaml")


async def list_workflows(request: Request, query: WorkflowsQuery) -> list[Workflow]:
    """List workflows by name, each with the jobs of its latest run."""
    server = request.server
    budget = PageBudget()
    made: list[Workflow] = []
    skipped, after = 0, ""
    seen = 0
    while len(made) < query.limit and seen < MAX_SCANNED:
        page = await send(server.core, server.store.list_definitions(after=after, limit=PAGE))
        seen += len(page)
        left = page
        if query.status is None:  # a filter counts only the workflows that match: their views are read first
            left = page[query.offset - skipped :]
            skipped += len(page) - len(left)
        for start in range(0, len(left), CONCURRENT_READS):
            part = left[start : start + CONCURRENT_READS]
            for view in await gather(*(_view_if(server, one, query.status) for one in part)):
                if view is None:
                    continue
                if skipped < query.offset:
                    skipped += 1
                elif len(made) < query.limit:
                    if not budget.fits(view):
                        view.jobs, view.truncated = [], True
                    made.append(view)
            if len(made) == query.limit:
                return made
        if len(page) < PAGE:
            break
        after = page[-1].workflow
    return made


async def _view_if(server: Server, found: Definition, status: Status | None) -> Workflow | None:
    """Build the view of a workflow; None if no job of it has the requested status."""
    run = await _latest_run(server, found)
    if status is not None and run is not None and not _may_have_job(run, status):
        return None
    view = await _latest_view(server, found, run)
    return view if status is None or any(job.status == status for job in view.jobs) else None


async def _latest_run(server: Server, found: Definition) -> Run | None:
    """Read the latest run of a workflow, without its document."""
    runs = await send(server.core, server.store.list_runs(workflow=found.workflow, limit=1))
    return runs[0] if runs else None


async def _latest_view(server: Server, found: Definition, run: Run | None) -> Workflow:
    """Build the view of a workflow: with the jobs of its latest run, or before that with those of its definition."""
    if run is None:
        return _idle_view(found if found.doc else await flows.get_definition(server.core, found.workflow))
    return await _view(server, found.version, run)


def _may_have_job(run: Run, status: Status) -> bool:
    """Whether a run may have a job with this status, by its counts of jobs. They do not suffice: a running internal job
    shows its job as queued.
    """
    states = [state for state, shown in STATUSES.items() if shown == status or (status, state) == ("queued", "running")]
    return any(run.counts.get(state) for state in states)


def _idle_view(found: Definition) -> Workflow:
    """Build the view of a workflow that has not run yet."""
    workflow = definitions.unpack(found.doc)
    return Workflow(
        id=found.workflow,
        name=workflow.title or workflow.name,
        trigger=", ".join(workflow.on) or "manual",
        jobs=defined_jobs(workflow),
        version=found.version,
        run_id="",
        status="queued",
    )


async def _view(server: Server, version: int, run: Run) -> Workflow:
    plan = await server.run_lookup.plan_of(run)
    return Workflow(
        id=run.workflow,
        name=plan.doc.title or run.workflow,
        trigger=", ".join(plan.doc.on) or plan.doc.trigger,
        jobs=await workflow_jobs(server, run, plan),
        version=version,
        run_id=run.id,
        status=run.status,
    )


async def create_workflow(request: Request, body: bytes) -> Workflow:  # noqa: ARG001 - read chunk by chunk below
    """Store a workflow definition. The body is a definition in YAML or JSON, or a Workflow object as GET returns it.
    Storing a definition that equals the newest version creates no new version.

    An invalid definition is refused with all its problems and their lines, and nothing is stored.
    """
    server = request.server
    kind = (request.header(b"content-type") or b"").partition(b";")[0].strip().lower().decode("latin-1")
    if kind not in MEDIA_TYPES:
        raise Refusal(415, f"send a definition as one of {', '.join(MEDIA_TYPES)}; got {kind[:100] or 'nothing'}")
    raw = b"".join([piece async for piece in request.chunks(server.settings.max_body)])
    # In a thread: parsing a large document takes seconds, which would block the event loop.
    parse = partial(read_document, raw, json=kind == MEDIA_TYPES[0])
    workflow = await server.workflow_thread.run(request.caller, parse)
    found = await flows.put(server.core, workflow)
    return _idle_view(found)


def read_document(raw: bytes, *, json: bool) -> definitions.Workflow:
    """Parse a definition. Raises Refusal (400, 422)."""
    if json:
        try:
            msgspec.json.decode(raw)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
            raise Refusal(400, f"the body is not JSON: {error}") from None
    try:
        return read(raw, api_format=json)
    except BadDefinition as error:
        problems = [{"message": one.message, "line": one.line, "column": one.column} for one in error.problems]
        raise Refusal(422, str(error).partition("\n")[0].rstrip(":"), problems=problems) from None


async def get_workflow(request: Request, query: VersionQuery) -> DefinitionView:
    """Return a definition: the newest version, or the one that `version` names."""
    server = request.server
    name = request.path["workflow"]
    found = await flows.get_definition(server.core, name, query.version)
    workflow = definitions.unpack(found.doc)
    return DefinitionView(
        id=found.workflow,
        name=workflow.title or workflow.name,
        version=found.version,
        digest=found.digest,
        created_at=found.created // 1000,
        definition=definitions.as_json(workflow),
    )


async def workflow_status(request: Request, query: RunQuery) -> Workflow:
    """Return a workflow with the jobs of its latest run, or of the run that `run` names."""
    server = request.server
    name = request.path["workflow"]
    if not query.run:
        found = await flows.get_definition(server.core, name)
        return await _latest_view(server, found, await _latest_run(server, found))
    run = await server.run_lookup.find_run(name, query.run)
    return await _view(server, run.version, run)


async def run_workflow(request: Request, body: StartRequest) -> RunInfo:
    """Start a run of the newest version. Repeating a `request_id` starts no second run."""
    server = request.server
    name = request.path["workflow"]
    run_id = ""
    if body.request_id:
        # The idempotent call only chooses the run's id. If this server dies before or after it starts the run, a
        # repeated request gets the same id and starts the run again, which changes nothing if the run exists.
        run_id = await _choose_run_id(request, name, body)
        found = await send(server.core, server.store.get_run(run_id))
        if found is not None:
            return run_info(server, found)
    await server.queue_quota.check(request, COMMANDS)
    in_thread = partial(server.workflow_thread.run, request.caller)
    run = await flows.start_by_name(server.core, name, body.inputs, 0, "api", run_id, in_thread=in_thread)
    return run_info(server, run)


async def _choose_run_id(request: Request, name: str, body: StartRequest) -> str:
    """Choose the id of a run. A repeated request of the same owner gets the same id."""
    server = request.server

    def choose_id() -> str:
        return server.core.services.get(JOB_IDS).new_in_any_shard(server.store.shards)

    text = f"{request.principal.owner}\0{name}\0{body.request_id}"
    key = f"run:{hashlib.sha256(text.encode()).hexdigest()}"
    about = {"workflow": name, "inputs": body.inputs}
    chosen = await server.calls.run(key, choose_id, fingerprint=about, lease=RUN_ID_LEASE)
    try:
        return flows.validate_run_id(server.core, chosen)
    except RunNotFound:
        raise CorruptRecord(f"the stored outcome of {key!r} is not a run id: {chosen!r}") from None


async def cancel_workflow(request: Request, body: ReasonRequest, query: RunQuery) -> RunInfo:
    """Cancel the latest run, or the run that `run` names."""
    server = request.server
    run = await server.run_lookup.find_run(request.path["workflow"], query.run, doc=False)
    return run_info(server, await flows.cancel(server.core, run.id, body.reason))
