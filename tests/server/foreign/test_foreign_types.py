"""A client in a statically typed language decodes every response of the routes that it uses: unsigned integers,
booleans and text, with the numbers that are the hardest for it: fractions of a second, retries, jobs in each status.
"""

from __future__ import annotations

import pytest

from backstay import current_job
from backstay.server.http import openapi
from backstay.server.routes.table import TABLE
from support import foreign_types as types
from support.foreign_types import Undecodable, decode
from support.server.calls import listening

#: A job of each kind: fractions in all durations, retries, labels, metadata, a failure that skips others.
JOBS = [
    {
        "id": "build",
        "name": "Build",
        "status": "queued",
        "command": "echo build",
        "duration_secs": None,
        "started_at": None,
        "depends_on": [],
        "output": None,
        "required_labels": ["linux"],
        "max_retries": 2,
        "attempt": 0,
        "metadata": {"node_type": "agent", "weight": 1.5},
        "ports": [{"id": "out", "label": "Out", "direction": "output", "port_type": "text", "color": None}],
        "children": None,
        "collapsed": False,
    },
    {"id": "test", "name": "Test", "command": "echo test", "depends_on": ["build"], "max_retries": 1},
    {"id": "ship", "name": "Ship", "command": "echo ship", "depends_on": ["test"]},
]
PIPE = {"id": "pipe", "name": "Pipe line", "trigger": "on: push", "jobs": JOBS}


@pytest.fixture
def pipe(any_site):
    """A workflow with a run whose first job is claimed, with a fractional TTL."""
    created = any_site.post("/api/workflows", PIPE)
    assert created.status_code == 201, created.text
    assert any_site.post("/api/workflows/pipe/run").status_code == 202
    return any_site


def claim(site, **options):
    body = {"worker_id": "w1", "labels": ["linux"], "lease_ttl_secs": 30, **options}
    return site.post("/api/jobs/claim", body)


def test_a_created_workflow(any_site):
    created = any_site.post("/api/workflows", PIPE)
    found = decode(types.WORKFLOW, created.text)
    assert (found["id"], found["name"], found["trigger"]) == ("pipe", "Pipe line", "on: push")
    assert [job["attempt"] for job in found["jobs"]] == [0, 0, 0]
    assert found["jobs"][0]["metadata"] == {"node_type": "agent", "weight": 1.5}
    assert found["jobs"][0]["ports"][0]["direction"] == "output"


def test_a_workflow_with_jobs_in_every_status(pipe):
    def status():
        shown = pipe.get("/api/workflows/pipe/status").text
        return {job["id"]: job for job in decode(types.WORKFLOW, shown)["jobs"]}

    assert status()["build"]["duration_secs"] is None
    lease = claim(pipe).json()["lease"]["lease_id"]
    running = status()["build"]
    assert (running["status"], running["attempt"], running["duration_secs"]) == ("running", 0, 0)
    pipe.post(f"/api/jobs/{lease}/fail", {"error": "disk full", "retryable": True})
    lease = claim(pipe, wait_secs=20).json()["lease"]["lease_id"]
    assert (status()["build"]["status"], status()["build"]["attempt"]) == ("running", 1)
    pipe.post(f"/api/jobs/{lease}/complete", {"outputs": {}})
    assert (status()["build"]["status"], status()["build"]["output"]) == ("success", None)
    lease = claim(pipe).json()["lease"]["lease_id"]
    pipe.post(f"/api/jobs/{lease}/fail", {"error": "exit code 3", "retryable": False})
    found = status()
    assert (found["test"]["status"], found["test"]["output"]) == ("failure", "exit code 3")
    assert found["ship"]["status"] == "skipped"
    assert pipe.post("/api/workflows/pipe/run").status_code == 202
    assert pipe.post("/api/workflows/pipe/cancel").status_code == 202
    assert {job["status"] for job in status().values()} == {"cancelled"}


def test_a_list_of_workflows(pipe):
    found = decode(types.many(types.WORKFLOW), pipe.get("/api/workflows").text)
    assert [one["id"] for one in found] == ["pipe"]
    assert [one["id"] for one in decode(types.many(types.WORKFLOW), pipe.get("/api/workflows?status=queued").text)] == [
        "pipe"
    ]
    assert decode(types.many(types.WORKFLOW), pipe.get("/api/workflows?status=success").text) == []


def test_a_job_of_a_program_that_has_a_result_of_any_type(site):
    async def run_jobs():
        stay = site.stay

        @stay.job()
        async def add(n: float) -> dict[str, float]:
            return {"sum": n + 0.5}

        @stay.workflow
        def sums(flow):
            flow.add(add, 1.0)

        await sums.start()
        await stay.worker(signals=False).run(burst=True)

    site.do(run_jobs())
    (job,) = decode(types.WORKFLOW, site.get("/api/workflows/sums/status").text)["jobs"]
    assert job["output"] == '{"sum":1.5}'


def test_no_claim(any_site):
    assert decode(types.CLAIM, claim(any_site).text) is None


def test_a_claim(pipe):
    found = decode(types.CLAIM, claim(pipe).text)
    assert found["lease"]["ttl_secs"] == 30
    assert (found["job"]["attempt"], found["job"]["command"]) == (0, "echo build")
    assert found["job"]["retry_policy"] == {"max_retries": 2, "backoff": "None"}


@pytest.mark.parametrize(("asked", "shown"), [(1.0, 1), (1.9, 1), (2, 2), (30.5, 30), (86400, 86400)])
def test_a_lease_with_a_fraction_of_a_second(pipe, asked, shown):
    answer = claim(pipe, lease_ttl_secs=asked)
    assert decode(types.CLAIM, answer.text)["lease"]["ttl_secs"] == shown
    assert answer.json()["lease"]["ttl_ms"] == asked * 1000


@pytest.mark.parametrize(
    ("backoff", "shown", "exact"),
    [
        ("0", "None", None),
        ("0.2", {"Fixed": {"delay_secs": 1}}, {"delay_ms": 200}),
        ("7", {"Fixed": {"delay_secs": 7}}, {"delay_ms": 7000}),
        (
            "{base: 1.5, max: 90s}",
            {"Exponential": {"base_secs": 2, "max_secs": 90}},
            {"base_ms": 1500, "max_ms": 90000},
        ),
    ],
)
def test_a_claim_of_a_job_with_a_fractional_backoff_and_timeout(site, backoff, shown, exact):
    jobs = f"{{a: {{run: 'true', retries: 3, timeout: 250ms, backoff: {backoff}}}}}"
    site.http.post("/api/workflows", content=f"name: w\njobs: {jobs}\n", headers={"content-type": "text/yaml"})
    site.post("/api/workflows/w/run")
    answer = claim(site)
    assert decode(types.CLAIM, answer.text)["job"]["retry_policy"]["backoff"] == shown
    whole = answer.json()["job"]
    assert (whole["timeout_secs"], whole["timeout_ms"]) == (1, 250)
    if exact is not None:
        ((_, delays),) = whole["retry_policy"]["backoff"].items()
        assert exact.items() <= delays.items()


def test_a_claim_of_a_function(any_site):
    any_site.enqueue("resize", {"path": "a.png"}, retries=2, timeout_secs=0.5)
    found = decode(types.CLAIM, claim(any_site, queues=["default"]).text)
    assert found["job"]["command"] == ""
    assert found["job"]["retry_policy"]["backoff"] == {"Exponential": {"base_secs": 1, "max_secs": 300}}


def test_upstream_outputs(pipe):
    lease = claim(pipe).json()["lease"]["lease_id"]
    pipe.post(f"/api/jobs/{lease}/complete", {"outputs": {"url": "s3://a", "count": "3"}})
    found = decode(types.CLAIM, claim(pipe).text)
    assert found["job"]["upstream_outputs"] == {"build": {"url": "s3://a", "count": "3"}}


def test_cancelled_is_a_bare_boolean(pipe):
    assert decode(types.boolean, pipe.get("/api/jobs/pipe/build/cancelled").text) is False
    claim(pipe)
    pipe.post("/api/workflows/pipe/cancel")
    assert decode(types.boolean, pipe.get("/api/jobs/pipe/build/cancelled").text) is True


def send_logs(site, lease, *streams):
    chunks = [
        {
            "workflow_id": "pipe",
            "job_id": "build",
            "sequence": n,
            "data": f"{n}\n",
            "timestamp_ms": 1000 + n,
            "stream": s,
        }
        for n, s in enumerate(streams)
    ]
    assert site.post(f"/api/jobs/{lease}/logs", {"chunks": chunks}).status_code == 200


def test_a_log(pipe):
    lease = claim(pipe).json()["lease"]["lease_id"]
    send_logs(pipe, lease, "stdout", "stderr", "log")
    answer = pipe.get("/api/workflows/pipe/jobs/build/logs")
    found = decode(types.many(types.LOG_CHUNK), answer.text)
    assert [(one["sequence"], one["stream"]) for one in found] == [(0, "stdout"), (1, "stderr"), (2, "stdout")]
    assert [one["source"] for one in answer.json()] == ["stdout", "stderr", "log"]
    assert {(one["workflow_id"], one["job_id"]) for one in found} == {("pipe", "build")}


def test_a_log_of_a_program(site):
    async def run_job():
        stay = site.stay

        @stay.job()
        async def talk() -> None:
            current_job().log("hello")
            current_job().log("oops", stream="audit")

        handle = await talk.enqueue()
        await stay.worker(signals=False).run(burst=True)
        return handle.id

    job = site.do(run_job())
    answer = site.get(f"/api/workflows/-/jobs/{job}/logs")
    assert [one["stream"] for one in decode(types.many(types.LOG_CHUNK), answer.text)] == ["stdout", "stdout"]
    assert [one["source"] for one in answer.json()] == ["log", "audit"]


def test_a_streamed_log(pipe):
    lease = claim(pipe).json()["lease"]["lease_id"]
    send_logs(pipe, lease, "stdout", "stderr")
    pipe.post(f"/api/jobs/{lease}/complete", {"outputs": {}})
    with listening(pipe, "/api/workflows/pipe/jobs/build/logs/stream") as stream:
        got = [(id_, types.LOG_CHUNK(data, "$")["sequence"]) for kind, id_, data in stream if kind == "log"]
    assert got == [("0", 0), ("1", 1)]


def test_a_list_of_workers(pipe):
    workers = types.many(types.WORKER_INFO)
    assert decode(workers, pipe.get("/api/workers").text) == []
    assert pipe.post("/api/workers/register", {"worker_id": "w1", "labels": ["linux"]}).status_code == 200
    assert pipe.http.post("/api/workers/w1/heartbeat").status_code == 200
    (idle,) = decode(workers, pipe.get("/api/workers").text)
    assert (idle["status"], idle["current_job"], idle["labels"]) == ("idle", None, ["linux"])
    claim(pipe)
    (busy,) = decode(workers, pipe.get("/api/workers").text)
    assert busy["status"] == "busy"


def test_the_status_codes_of_leases(pipe):
    lease = claim(pipe).json()["lease"]["lease_id"]
    assert pipe.http.post(f"/api/jobs/{lease}/heartbeat").status_code == 200  # without a body
    assert pipe.post(f"/api/jobs/{lease}/complete", {"outputs": {}}).status_code == 200
    for verb, body in (("heartbeat", {}), ("fail", {"error": "", "retryable": True})):
        assert pipe.post(f"/api/jobs/{lease}/{verb}", body).status_code == 409
    assert pipe.post("/api/workflows/none/run").status_code == 404
    assert pipe.post("/api/workflows/none/cancel").status_code == 404


def properties(schema):
    """Yield the properties of all objects in a schema."""
    if isinstance(schema, dict):
        yield from schema.get("properties", {}).items()
        for part in schema.values():
            yield from properties(part)
    elif isinstance(schema, list):
        for part in schema:
            yield from properties(part)


def test_every_duration_and_number_of_a_response_is_whole():
    """In all responses, also of other routes: `…_secs` and `…_ms` are integers. A duration with a fraction has another
    name.
    """
    document = openapi.build_document(TABLE)
    requests = {route.body.__name__ for route in TABLE if route.body is not None and hasattr(route.body, "__name__")}
    replies = {name: one for name, one in document["components"]["schemas"].items() if name not in requests}
    found = {}
    for name, schema in replies.items():
        if name == "LogChunkIn":  # part of a request
            continue
        for field, kind in properties(schema):
            if field.endswith(("_secs", "_ms")) or field in ("attempt", "sequence", "max_retries"):
                found[field] = kind
                kinds = {one.get("type") for one in kind.get("anyOf", [kind])}
                assert kinds <= {"integer", "null"}, (name, field, kind)
    assert {"ttl_secs", "delay_secs", "base_secs", "max_secs", "duration_secs", "timeout_secs", "ttl_ms"} <= set(found)


@pytest.mark.parametrize("text", ["30.0", "-1", "true", '"30"', "null", str(2**64)])
def test_the_decoder_is_strict(text):
    with pytest.raises(Undecodable):
        decode(types.u64, text)
    assert decode(types.u64, "30") == 30
