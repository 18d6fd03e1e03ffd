"""Workflows: definitions by name, and their latest runs."""

from __future__ import annotations

import hashlib
from asyncio import gather, to_thread
from typing import TYPE_CHECKING

import msgspec

from backstay.errors import BadDefinition
from backstay.job.api.registry import ids_of
from backstay.job.flows import send
from backstay.job.run_model import Definition, Run
from backstay.server.http.problem import Refusal
from backstay.server.http.request import Call
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
from backstay.server.views.run_jobs import defined_jobs, flow_jobs
from backstay.workflow import definition as definitions
from backstay.workflow import flows
from backstay.workflow.document.yaml import read

if TYPE_CHECKING:
    from backstay.server.app import Server

#: Definitions that are read in one step, and looked at for one list.
PAGE, MOST = 100, 10_000
#: Others wait so long for a server that died while it made up a run's id.
AGREED = 5.0
TAKES = ("application/json", "application/yaml", "application/x-yaml", "text/yaml")


async def list_workflows(call: Call, query: WorkflowsQuery) -> list[Workflow]:
    """Workflows by name, each with the jobs of its latest run."""
    server = call.server
    found: list[Definition] = []
    skipped, after = 0, ""
    seen = 0
    while len(found) < query.limit and seen < MOST:
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
        return await _view(server, found.version, await server.runbook.run(runs[0].id))
    whole = await flows.definition_of(server.core, found.workflow)
    return _idle(whole)


def _idle(found: Definition) -> Workflow:
    """A workflow that has not run yet."""
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
    play = server.runbook.learn(run)
    return Workflow(
        id=run.workflow,
        name=play.doc.title or run.workflow,
        trigger=", ".join(play.doc.on) or play.doc.trigger,
        jobs=await flow_jobs(server, run) if jobs is None else jobs,
        version=version,
        run_id=run.id,
        status=run.status,
    )


async def create_workflow(call: Call, body: bytes) -> Workflow:  # noqa: ARG001 - read as it comes
    """Store a definition, as YAML or JSON; or a Workflow as GET shows it. The same one again is the same version.

    Every problem of a bad one is listed with its line, and nothing is stored.
    """
    server = call.server
    kind = (call.header(b"content-type") or b"").partition(b";")[0].strip().lower().decode("latin-1")
    if kind not in TAKES:
        raise Refusal(415, f"send a definition as one of {', '.join(TAKES)}; got {kind[:100] or 'nothing'}")
    raw = b"".join([piece async for piece in call.chunks(server.settings.max_body)])
    # Seconds, for a large one: others are answered meanwhile.
    workflow = await to_thread(read_document, raw, json=kind == TAKES[0])
    found = await flows.put(server.core, workflow)
    return _idle(found)


def read_document(raw: bytes, *, json: bool) -> definitions.Workflow:
    """Raises Refusal (400, 422)."""
    if json:
        try:
            msgspec.json.decode(raw)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
            raise Refusal(400, f"the body is not JSON: {error}") from None
    try:
        return read(raw, listed=json)
    except BadDefinition as error:
        problems = [{"message": one.message, "line": one.line, "column": one.column} for one in error.problems]
        raise Refusal(422, str(error).partition("\n")[0].rstrip(":"), problems=problems) from None


async def get_workflow(call: Call, query: VersionQuery) -> DefinitionView:
    """A definition: the newest version, or one that is named."""
    server = call.server
    name = call.path["workflow"]
    found = await flows.definition_of(server.core, name, query.version)
    workflow = definitions.unpack(found.doc)
    return DefinitionView(
        id=found.workflow,
        name=workflow.title or workflow.name,
        version=found.version,
        digest=found.digest,
        created_at=found.created // 1000,
        definition=definitions.as_json(workflow),
    )


async def workflow_status(call: Call, query: RunQuery) -> Workflow:
    """A workflow with the jobs of its latest run, or of the run that is named."""
    server = call.server
    name = call.path["workflow"]
    if not query.run:
        return await _latest(server, await flows.definition_of(server.core, name))
    run = await server.runbook.latest(name, query.run)
    return await _view(server, run.version, run)


async def run_workflow(call: Call, body: StartRequest) -> RunInfo:
    """Begin a run of the newest version. With a `request_id`, sending it again begins nothing."""
    server = call.server
    name = call.path["workflow"]
    run_id = ""
    if body.request_id:
        about = {"workflow": name, "inputs": body.inputs}
        key = "http-run:" + hashlib.sha256(f"{name}\0{body.request_id}".encode()).hexdigest()

        # Only its id is agreed on. A server that is killed before it has begun the run, or after that, leaves the same
        # thing to do for the next one: a run that exists is begun by nobody.
        def agreed() -> str:
            return ids_of(server.core).anywhere(server.store.shards)

        run_id = await server.stay.idempotency.run(key, agreed, fingerprint=about, lease=AGREED)
        found = await send(server.core, server.store.get_run(run_id))
        if found is not None:
            return info(server, found)
    begun = await flows.start_by_name(server.core, name, body.inputs, 0, "api", run_id)
    return info(server, await server.runbook.run(begun.id))


async def cancel_workflow(call: Call, body: ReasonRequest, query: RunQuery) -> RunInfo:
    """End the latest run, or the run that is named."""
    server = call.server
    run = await server.runbook.latest(call.path["workflow"], query.run)
    return info(server, await flows.cancel(server.core, run.id, body.reason))
