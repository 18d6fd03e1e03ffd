"""Routes of workflows: definitions by name, and their latest runs."""

from __future__ import annotations

import hashlib
from asyncio import gather, to_thread
from typing import TYPE_CHECKING

import msgspec

from backstay.errors import BadDefinition
from backstay.job.flows import send
from backstay.job.ids import JOB_IDS
from backstay.job.run_model import Definition, Run
from backstay.server.http.problem import Refusal
from backstay.server.http.request import Request
from backstay.server.routes.runs import info
from backstay.server.schemas.jobs import ReasonRequest, RunQuery
from backstay.server.schemas.workflows import (
    DefinitionView,
    FlowJob,
    RunInfo,
    StartRequest,
    VersionQuery,
    Workflow,
    WorkflowsQuery,
)
from backstay.server.views.run_jobs import defined_jobs, run_jobs
from backstay.workflow import definition as definitions
from backstay.workflow import flows
from backstay.workflow.document.yaml import read

if TYPE_CHECKING:
    from backstay.server.app import Server

#: Definitions per read, and the most that are scanned for one list.
PAGE, MAX_SCANNED = 100, 10_000
#: Lease of the agreement on a run's id, in seconds: a repeated request waits that long for a server that died.
RUN_ID_LEASE = 5.0
MEDIA_TYPES = ("application/json", "application/yaml", "application/x-yaml", "text/yaml")


async def list_workflows(request: Request, query: WorkflowsQuery) -> list[Workflow]:
    """List workflows by name, each with the jobs of its latest run."""
    server = request.server
    found: list[Definition] = []
    skipped, after = 0, ""
    seen = 0
    while len(found) < query.limit and seen < MAX_SCANNED:
        page = await send(server.core, server.store.list_definitions(after=after, limit=PAGE))
        for one in page:
            seen += 1
            if query.status is not None and await _status(server, one.workflow) != query.status:
                continue
            if skipped < query.offset:
                skipped += 1
            elif len(found) < query.limit:
                found.append(one)
        if len(page) < PAGE:
            break
        after = page[-1].workflow
    return list(await gather(*(_latest(server, one) for one in found)))


async def _status(server: Server, name: str) -> str:
    runs = await send(server.core, server.store.list_runs(workflow=name, limit=1))
    return runs[0].status if runs else "queued"


async def _latest(server: Server, found: Definition) -> Workflow:
    runs = await send(server.core, server.store.list_runs(workflow=found.workflow, limit=1))
    if runs:
        return await _view(server, found.version, await server.run_lookup.get_run(runs[0].id))
    whole = await flows.get_definition(server.core, found.workflow)
    return _idle(whole)


def _idle(found: Definition) -> Workflow:
    """Show a workflow that has not run yet."""
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


async def _view(server: Server, version: int, run: Run, jobs: list[FlowJob] | None = None) -> Workflow:
    plan = server.run_lookup.cache_plan(run)
    return Workflow(
        id=run.workflow,
        name=plan.doc.title or run.workflow,
        trigger=", ".join(plan.doc.on) or plan.doc.trigger,
        jobs=await run_jobs(server, run) if jobs is None else jobs,
        version=version,
        run_id=run.id,
        status=run.status,
    )


async def create_workflow(request: Request, body: bytes) -> Workflow:  # noqa: ARG001 - read chunk by chunk below
    """Store a definition as YAML or JSON, or a Workflow as GET returns it. Storing an equal definition creates no new
    version.

    An invalid definition is refused with all its problems and their lines, and nothing is stored.
    """
    server = request.server
    kind = (request.header(b"content-type") or b"").partition(b";")[0].strip().lower().decode("latin-1")
    if kind not in MEDIA_TYPES:
        raise Refusal(415, f"send a definition as one of {', '.join(MEDIA_TYPES)}; got {kind[:100] or 'nothing'}")
    raw = b"".join([piece async for piece in request.chunks(server.settings.max_body)])
    # In a thread: a large document takes seconds, which would block the event loop.
    workflow = await to_thread(read_document, raw, json=kind == MEDIA_TYPES[0])
    found = await flows.put(server.core, workflow)
    return _idle(found)


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
        return await _latest(server, await flows.get_definition(server.core, name))
    run = await server.run_lookup.find_run(name, query.run)
    return await _view(server, run.version, run)


async def run_workflow(request: Request, body: StartRequest) -> RunInfo:
    """Start a run of the newest version. Repeating a `request_id` starts no second run."""
    server = request.server
    name = request.path["workflow"]
    run_id = ""
    if body.request_id:
        about = {"workflow": name, "inputs": body.inputs}
        key = "http-run:" + hashlib.sha256(f"{name}\0{body.request_id}".encode()).hexdigest()

        # The idempotent call agrees on the run's id alone. If this server dies before or after it starts the run, a
        # repeated request does the same again, and starting a run that exists changes nothing.
        def choose_id() -> str:
            return server.core.services.get(JOB_IDS).new_in_any_shard(server.store.shards)

        run_id = await server.stay.idempotency.run(key, choose_id, fingerprint=about, lease=RUN_ID_LEASE)
        found = await send(server.core, server.store.get_run(run_id))
        if found is not None:
            return info(server, found)
    return info(server, await flows.start_by_name(server.core, name, body.inputs, 0, "api", run_id))


async def cancel_workflow(request: Request, body: ReasonRequest, query: RunQuery) -> RunInfo:
    """Cancel the latest run, or the run that `run` names."""
    server = request.server
    run = await server.run_lookup.find_run(request.path["workflow"], query.run)
    return info(server, await flows.cancel(server.core, run.id, body.reason))
