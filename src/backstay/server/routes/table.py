"""The table of all routes. Routing, roles, OpenAPI and docs/reference/http-api.md derive from it. The types of a route
are its handler's annotations, its description is the handler's docstring.
"""

from __future__ import annotations

from backstay.server.http.route import ADMIN, ANYONE, OPEN, SUBMIT, WORKER, Route
from backstay.server.routes import artifacts, dashboard, jobs, leases, logs, operations, runs, workers, workflows
from backstay.server.routes import coordination as c

MEGABYTE = 1024 * 1024
NO_LEASE = {409: "The lease is not current; nothing was changed."}
NO_JOB = {404: "There is no such workflow, run or job."}
NO_WORKFLOW = {404: "There is no such workflow, or it has no such run."}
RETRY_ERRORS = {**NO_JOB, 409: "A job that this job needs did not succeed: retry the needed job first."}
NO_RUN = {404: "There is no such run."}
NO_WORKER = {404: "There is no such worker."}
FOREIGN_WORKER = {409: "The worker id belongs to another token, whose worker is not offline yet."}
WORKER_ERRORS = {**NO_WORKER, **FOREIGN_WORKER}
LOST = {409: "The lease is lost: another client holds it, or it expired."}

TABLE: tuple[Route, ...] = (
    # ── operations ──
    Route("GET", "/healthz", operations.healthz, OPEN, "operations"),
    Route("GET", "/readyz", operations.readyz, OPEN, "operations", other_statuses={503: "Not ready."}),
    Route(
        "GET", "/metrics", operations.metrics, SUBMIT, "operations", produces="text/plain; version=0.0.4; charset=utf-8"
    ),
    Route("GET", "/openapi.json", operations.openapi_document, ANYONE, "operations"),
    # ── dashboard ──
    Route("GET", "/", dashboard.page, OPEN, "dashboard", produces=dashboard.HTML),
    Route(
        "GET",
        "/assets/{file}",
        dashboard.asset,
        OPEN,
        "dashboard",
        errors={404: "The dashboard has no such file."},
        produces="application/octet-stream",
    ),
    # ── workflows ──
    Route("GET", "/api/workflows", workflows.list_workflows, SUBMIT, "workflows"),
    Route(
        "POST",
        "/api/workflows",
        workflows.create_workflow,
        SUBMIT,
        "workflows",
        status=201,
        consumes=", ".join(workflows.MEDIA_TYPES),
    ),
    Route("GET", "/api/workflows/{workflow}", workflows.get_workflow, SUBMIT, "workflows", errors=NO_WORKFLOW),
    Route(
        "GET", "/api/workflows/{workflow}/status", workflows.workflow_status, SUBMIT, "workflows", errors=NO_WORKFLOW
    ),
    Route(
        "POST",
        "/api/workflows/{workflow}/run",
        workflows.run_workflow,
        SUBMIT,
        "workflows",
        status=202,
        errors={**NO_WORKFLOW, 409: "Only a Python program can start it, or a request with this id is in progress."},
    ),
    Route(
        "POST",
        "/api/workflows/{workflow}/cancel",
        workflows.cancel_workflow,
        SUBMIT,
        "workflows",
        status=202,
        errors=NO_WORKFLOW,
    ),
    # ── worker protocol ──
    Route("POST", "/api/jobs/claim", leases.claim_job, WORKER, "worker protocol", errors=FOREIGN_WORKER),
    Route("POST", "/api/jobs/{lease}/heartbeat", leases.beat_lease, WORKER, "worker protocol", errors=NO_LEASE),
    Route(
        "POST",
        "/api/jobs/{lease}/complete",
        leases.complete_job,
        WORKER,
        "worker protocol",
        errors=NO_LEASE,
        max_body=2 * MEGABYTE,
    ),
    Route("POST", "/api/jobs/{lease}/fail", leases.fail_job, WORKER, "worker protocol", errors=NO_LEASE),
    Route("POST", "/api/jobs/{lease}/release", leases.release_job, WORKER, "worker protocol", errors=NO_LEASE),
    Route(
        "POST",
        "/api/jobs/{lease}/logs",
        leases.append_logs,
        WORKER,
        "worker protocol",
        errors=NO_LEASE,
        max_body=8 * MEGABYTE,
    ),
    Route(
        "GET", "/api/jobs/{workflow}/{job}/cancelled", leases.job_cancelled, ANYONE, "worker protocol", errors=NO_JOB
    ),
    Route(
        "PUT",
        "/api/jobs/{lease}/artifacts/{name}",
        artifacts.put_artifact,
        WORKER,
        "worker protocol",
        errors=NO_LEASE,
        consumes="application/octet-stream",
    ),
    # ── workers ──
    Route("GET", "/api/workers", workers.list_workers, SUBMIT, "workers"),
    Route("POST", "/api/workers/register", workers.register_worker, WORKER, "workers", errors=FOREIGN_WORKER),
    Route("POST", "/api/workers/{worker}/heartbeat", workers.beat_worker, WORKER, "workers", errors=WORKER_ERRORS),
    Route(
        "DELETE", "/api/workers/{worker}", workers.remove_worker, WORKER, "workers", status=204, errors=WORKER_ERRORS
    ),
    # ── logs ──
    Route("GET", "/api/workflows/{workflow}/jobs/{job}/logs", logs.read_logs, SUBMIT, "logs", errors=NO_JOB),
    Route(
        "GET",
        "/api/workflows/{workflow}/jobs/{job}/logs/stream",
        logs.stream_logs,
        SUBMIT,
        "logs",
        errors=NO_JOB,
        produces="text/event-stream",
    ),
    # ── artifacts ──
    Route(
        "GET",
        "/api/workflows/{workflow}/jobs/{job}/artifacts",
        artifacts.list_artifacts,
        ANYONE,
        "artifacts",
        errors=NO_JOB,
    ),
    Route(
        "GET",
        "/api/workflows/{workflow}/jobs/{job}/artifacts/{name}",
        artifacts.get_artifact,
        ANYONE,
        "artifacts",
        errors=NO_JOB,
        produces="application/octet-stream",
    ),
    # ── runs ──
    Route("GET", "/api/runs", runs.list_runs, SUBMIT, "runs"),
    Route("GET", "/api/runs/{run}", runs.get_run, SUBMIT, "runs", errors=NO_RUN),
    Route("POST", "/api/runs/{run}/cancel", runs.cancel_run, SUBMIT, "runs", errors=NO_RUN),
    Route("POST", "/api/runs/{run}/rerun-failed", runs.rerun_failed, SUBMIT, "runs", errors=NO_RUN),
    Route("POST", "/api/runs/{run}/jobs/{job}/retry", runs.retry_run_job, SUBMIT, "runs", errors=RETRY_ERRORS),
    Route("GET", "/api/runs/{run}/events", runs.read_events, SUBMIT, "runs", errors=NO_RUN),
    Route(
        "GET",
        "/api/runs/{run}/events/stream",
        runs.stream_run_events,
        SUBMIT,
        "runs",
        errors=NO_RUN,
        produces="text/event-stream",
    ),
    Route("GET", "/api/events", runs.stream_events, SUBMIT, "runs", produces="text/event-stream"),
    # ── jobs and queues ──
    Route("GET", "/api/jobs", jobs.list_jobs, SUBMIT, "jobs"),
    Route("POST", "/api/jobs", jobs.enqueue_job, SUBMIT, "jobs", status=201),
    Route("GET", "/api/jobs/dead", jobs.list_dead, SUBMIT, "jobs"),
    Route("POST", "/api/jobs/dead/retry", jobs.retry_dead, SUBMIT, "jobs"),
    Route("DELETE", "/api/jobs/dead", jobs.purge_dead, ADMIN, "jobs"),
    Route("GET", "/api/jobs/{job}", jobs.get_job, SUBMIT, "jobs", errors=NO_JOB),
    Route("POST", "/api/jobs/{job}/retry", jobs.retry_job, SUBMIT, "jobs", errors=RETRY_ERRORS),
    Route("POST", "/api/jobs/{job}/cancel", jobs.cancel_job, SUBMIT, "jobs", errors=NO_JOB),
    Route("GET", "/api/queues", jobs.list_queues, SUBMIT, "queues"),
    Route("POST", "/api/queues/{queue}/pause", jobs.pause_queue, ADMIN, "queues"),
    Route("POST", "/api/queues/{queue}/resume", jobs.resume_queue, ADMIN, "queues"),
    # ── coordination ──
    Route(
        "POST",
        "/api/locks/{name}/acquire",
        c.acquire_lock,
        ANYONE,
        "coordination",
        other_statuses={202: "The lock is not free yet: repeat the request."},
        errors={409: "The lock is not free, and the maximum wait has passed or is zero."},
    ),
    Route("POST", "/api/locks/{name}/confirm", c.confirm_lock, ANYONE, "coordination", errors=LOST),
    Route("POST", "/api/locks/{name}/renew", c.renew_lock, ANYONE, "coordination", errors=LOST),
    Route("POST", "/api/locks/{name}/release", c.release_lock, ANYONE, "coordination", errors=LOST),
    Route("POST", "/api/locks/cleanup", c.cleanup_locks, ANYONE, "coordination"),
    Route("GET", "/api/locks", c.list_locks, SUBMIT, "coordination"),
    Route("GET", "/api/locks/{name}", c.get_lock, SUBMIT, "coordination"),
    Route("POST", "/api/locks/{name}/force-release", c.force_release_lock, ADMIN, "coordination"),
    Route("POST", "/api/limits/{name}/hit", c.hit_limit, ANYONE, "coordination"),
    Route(
        "POST",
        "/api/idempotency/{key}/begin",
        c.begin_call,
        ANYONE,
        "coordination",
        errors={409: "Another client runs the call."},
    ),
    Route("POST", "/api/idempotency/{key}/complete", c.complete_call, ANYONE, "coordination", errors=LOST),
    Route("POST", "/api/idempotency/{key}/fail", c.fail_call, ANYONE, "coordination", errors=LOST),
)
