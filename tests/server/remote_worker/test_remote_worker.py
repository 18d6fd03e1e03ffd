"""The remote worker, which uses only HTTP: functions, commands, cancellations, timeouts and stops."""

from __future__ import annotations

import asyncio
import contextlib
import threading
import time

import pytest

from backstay import Backstay, Cancel, Retry, Snooze, current_job
from backstay.errors import ConfigError, EngineUnavailable
from backstay.server.remote_worker.client import RequestRefused, ServerClient
from backstay.server.remote_worker.worker import RemoteWorker
from backstay.testing.waiting import WITHIN, eventually
from backstay.workflow.command.environment import build_command_environment

SLEEP = {"name": "sleepy", "jobs": {"nap": {"run": "echo started; sleep 60", "retries": 3}}}


@contextlib.contextmanager
def working(site, *, job_types=None, **options):
    """Run a remote worker in a thread; yield it and a function that stops it."""
    ready = threading.Event()
    made = []

    async def work():
        around = build_command_environment((), (), ".", 2.0)
        worker = RemoteWorker(
            ServerClient(site.url), environment=around, job_types=job_types, **{"lease": 3.0, **options}
        )
        made.extend([worker, asyncio.get_running_loop()])
        ready.set()
        await worker.run()

    thread = threading.Thread(target=lambda: asyncio.run(work()))
    thread.start()
    assert ready.wait(WITHIN)
    worker, loop = made
    try:
        yield worker, lambda: loop.call_soon_threadsafe(worker.stop)
    finally:
        with contextlib.suppress(RuntimeError):  # the worker's loop has already ended
            loop.call_soon_threadsafe(worker.stop)
        thread.join(60)
        assert not thread.is_alive()


def status(site, job):
    return site.get(f"/api/jobs/{job}").json()


def test_a_remote_worker_runs_functions_by_name(site):
    stay = Backstay("memory://")

    @stay.job
    async def add(a: int, b: int = 1) -> int:
        return a + b

    @stay.job
    def shout(word: str) -> dict[str, str]:
        return {"loud": word.upper()}

    @stay.job
    async def fall() -> None:
        raise ValueError("over")

    with working(site, job_types=stay.internals.job_types, queues=["default"], concurrency=2):
        jobs = [
            site.enqueue("add", {"a": 2}),
            site.enqueue("shout", {"word": "hey"}),
            site.enqueue("fall", retries=0),
            site.enqueue("not-defined", retries=0),
        ]
        assert eventually(lambda: all(status(site, job)["status"] in ("success", "failure") for job in jobs), 60)
    added, loud, fell, unknown = (status(site, job) for job in jobs)
    assert added["result"] == 3
    assert loud["result"] == {"loud": "HEY"}
    assert fell["error"]["message"] == "ValueError: over"
    assert "not-defined" in unknown["error"]["message"]


@pytest.fixture
def program():
    """An app whose jobs use every feature of the job context."""
    stay = Backstay("memory://")
    gone = threading.Event()

    @stay.job
    async def report(word: str) -> dict[str, object]:
        ctx = current_job()
        ctx.log(word)
        ctx.log("w" * 20_000, stream="debug")
        ctx.progress(0.5)
        ctx.outputs["word"] = word
        ctx.check()
        return {"id": ctx.id, "attempt": ctx.attempt, "fence": ctx.fence > 0, "last": ctx.is_last_attempt}

    @stay.job
    def report_from_a_thread(word: str) -> str:
        current_job().log(word)
        return current_job().type

    @stay.job
    async def choose(how: str) -> str:
        ctx = current_job()
        if how == "snooze" and not ctx.snoozes:
            return Snooze(0.01)
        if how == "retry" and ctx.attempt == 1:
            raise Retry(after=0.01, reason="not yet")
        if how == "cancel":
            raise Cancel("not needed")
        if how == "go on":
            ctx.continue_with(choose, "end")
        return how

    @stay.job
    async def wait() -> None:
        current_job().log("waiting")
        try:
            await asyncio.sleep(600)
        finally:
            gone.set()

    @stay.job
    def wait_in_a_thread() -> None:
        ctx = current_job()
        ctx.log("waiting")
        while not ctx.cancelled:
            time.sleep(0.01)
        gone.set()
        ctx.check()

    stay.gone = gone
    return stay


def wait_ended(site, job, within=60):
    assert eventually(lambda: status(site, job)["status"] not in ("queued", "running"), within), status(site, job)
    return status(site, job)


def test_a_function_reads_its_job_context_and_its_logs_are_stored(site, program):
    with working(site, job_types=program.internals.job_types, queues=["default"]):
        reported = wait_ended(site, site.enqueue("report", {"word": "hello"}, retries=0))
        other = wait_ended(site, site.enqueue("report_from_a_thread", {"word": "there"}))
    assert reported["result"] == {"id": reported["id"], "attempt": 1, "fence": True, "last": True}
    lines = [chunk["data"] for chunk in site.get(f"/api/workflows/-/jobs/{reported['id']}/logs").json()]
    assert lines == ["hello", "w" * 16_000, "w" * 4_000]
    assert site.get(f"/api/workflows/-/jobs/{reported['id']}/artifacts").json()["outputs"] == {"word": "hello"}
    assert other["result"] == "report_from_a_thread"
    assert [chunk["data"] for chunk in site.get(f"/api/workflows/-/jobs/{other['id']}/logs").json()] == ["there"]


def test_a_function_can_snooze_retry_or_cancel_its_job(site, program):
    with working(site, job_types=program.internals.job_types, queues=["default"]):
        jobs = {how: site.enqueue("choose", {"how": how}) for how in ("snooze", "retry", "cancel", "go on")}
        found = {how: wait_ended(site, job) for how, job in jobs.items()}
    assert found["snooze"]["result"] == "snooze"
    assert found["snooze"]["attempt"] == 1
    assert found["retry"]["attempt"] == 2
    assert (found["cancel"]["status"], found["cancel"]["error"]["message"]) == ("cancelled", "not needed")
    assert found["go on"]["status"] == "failure"
    assert "continue_with() needs a worker that connects to the engine" in found["go on"]["error"]["message"]


@pytest.mark.parametrize("name", ["wait", "wait_in_a_thread"])
def test_a_cancelled_function_is_stopped(site, program, name):
    with working(site, job_types=program.internals.job_types, queues=["default"], lease=1.0):
        job = site.enqueue(name)
        assert eventually(lambda: site.get(f"/api/workflows/-/jobs/{job}/logs").json(), 60)
        site.post(f"/api/jobs/{job}/cancel")
        assert wait_ended(site, job)["status"] == "cancelled"
        assert program.gone.wait(WITHIN)


def test_a_function_past_its_timeout_fails(site, program):
    with working(site, job_types=program.internals.job_types, queues=["default"]):
        found = wait_ended(site, site.enqueue("wait", timeout_secs=0.2, retries=0))
    assert found["error"]["message"] == "the attempt ran longer than 0.2 s"


def test_a_stopping_worker_releases_its_function_job(site, program):
    with working(site, job_types=program.internals.job_types, queues=["default"], drain=0.1) as (_, stop):
        job = site.enqueue("wait")
        assert eventually(lambda: site.get(f"/api/workflows/-/jobs/{job}/logs").json(), 60)
        stop()
        assert eventually(lambda: status(site, job)["status"] == "queued", 60)
    assert status(site, job)["attempt"] == 0


def test_a_stopped_remote_worker_is_not_listed(site):
    with working(site, name="guest"):
        assert eventually(lambda: [one["worker_id"] for one in site.get("/api/workers").json()] == ["guest"], 60)
    assert site.get("/api/workers").json() == []


def test_a_cancelled_command_is_stopped(site):
    site.post("/api/workflows", SLEEP)
    with working(site):
        run = site.post("/api/workflows/sleepy/run").json()["run_id"]
        assert eventually(lambda: site.get("/api/workflows/sleepy/jobs/nap/logs").json(), 60)
        site.post(f"/api/runs/{run}/cancel", {"reason": "enough"})
        assert eventually(lambda: site.get(f"/api/runs/{run}").json()["status"] == "cancelled", 60)


def test_a_stopping_worker_releases_its_command_job(site):
    site.post("/api/workflows", SLEEP)
    with working(site, drain=0.1) as (_, stop):
        run = site.post("/api/workflows/sleepy/run").json()["run_id"]
        assert eventually(lambda: site.get("/api/workflows/sleepy/jobs/nap/logs").json(), 60)
        stop()
        assert eventually(lambda: site.get(f"/api/runs/{run}").json()["jobs"][0]["status"] == "queued", 60)
    assert site.get(f"/api/runs/{run}").json()["jobs"][0]["attempt"] == 0


def test_an_idle_worker_stops_at_once(site):
    with working(site, concurrency=3):
        assert eventually(lambda: site.server.waiting == 3, 60)
    assert eventually(lambda: site.server.waiting == 0)


def test_a_command_past_its_timeout_fails(site):
    site.post("/api/workflows", {"name": "slow", "jobs": {"nap": {"run": "sleep 60", "timeout": 1}}})
    with working(site):
        run = site.post("/api/workflows/slow/run").json()["run_id"]
        assert eventually(lambda: site.get(f"/api/runs/{run}").json()["status"] == "failure", 60)
    assert "1 s" in site.get(f"/api/runs/{run}").json()["jobs"][0]["error"]


FILES = """\
name: files
jobs:
  build:
    run: |
      mkdir "$BACKSTAY_ARTIFACTS/dist"
      printf wheel > "$BACKSTAY_ARTIFACTS/dist/a.whl"
      : > "$BACKSTAY_ARTIFACTS/empty"
  check:
    needs: build
    run: |
      cat "$BACKSTAY_NEEDS_DIR/BUILD/dist/a.whl"
      test -f "$BACKSTAY_NEEDS_DIR/BUILD/empty"
"""
ENDS = """\
name: ends
jobs:
  good: {run: "echo '::set-output word=hello'"}
  soft: {run: exit 1, continue-on-error: true}
  bad: {run: exit 1}
  never: {needs: bad, run: echo never}
  last:
    needs: [good, soft, bad, never]
    if: always()
    run: |
      echo "$NEEDS_GOOD_WORD $BACKSTAY_RESULT_GOOD $BACKSTAY_RESULT_SOFT $BACKSTAY_RESULT_BAD $BACKSTAY_RESULT_NEVER"
"""


def run_to_end(site, text, name):
    """Run a workflow to its end on a remote worker; return its jobs by id."""
    assert site.http.post("/api/workflows", content=text, headers={"content-type": "text/yaml"}).status_code == 201
    with working(site):
        run = site.post(f"/api/workflows/{name}/run").json()["run_id"]
        assert eventually(lambda: site.get(f"/api/runs/{run}").json()["status"] not in ("queued", "running"), 100)
    return {job["id"]: job for job in site.get(f"/api/runs/{run}").json()["jobs"]}


def test_artifacts_of_a_command_reach_its_dependents(site):
    jobs = run_to_end(site, FILES, "files")
    assert {id_: job["status"] for id_, job in jobs.items()} == {"build": "success", "check": "success"}
    files = site.get("/api/workflows/files/jobs/build/artifacts").json()["files"]
    assert [(one["name"], one["size"]) for one in files] == [("dist/a.whl", 5), ("empty", 0)]
    assert site.get("/api/workflows/files/jobs/build/artifacts/dist%2Fa.whl").content == b"wheel"
    assert site.get("/api/workflows/files/jobs/build/artifacts/empty").content == b""
    assert [chunk["data"] for chunk in site.get("/api/workflows/files/jobs/check/logs").json()] == ["wheel"]


def test_a_command_gets_the_outcome_of_each_of_its_needs(site):
    run_to_end(site, ENDS, "ends")
    (line,) = site.get("/api/workflows/ends/jobs/last/logs").json()
    assert line["data"] == "hello success success failure skipped\n"


def test_a_client_refuses_a_bad_url_without_revealing_its_password():
    for url in ("nonsense", "ftp://x", "http://", "http://user:secret@127.0.0.1:1"):
        with pytest.raises(ConfigError) as refused:
            ServerClient(url)
        assert "secret" not in str(refused.value)

    async def post():
        await ServerClient("http://127.0.0.1:1").post("/healthz", {})

    with pytest.raises(EngineUnavailable):
        asyncio.run(post())


def test_a_refusal_carries_its_status_and_detail(site):
    async def post(url):
        client = ServerClient(url)
        try:
            await client.post("/api/jobs/none.1/complete", {})
        finally:
            await client.close()

    with pytest.raises(RequestRefused, match="not current") as refused:
        asyncio.run(post(site.url))
    assert refused.value.status == 409


DECLARED = """\
name: declared
inputs: {tag: one}
jobs:
  build: {run: "echo '::set-output wheel=a.whl'"}
  test:
    needs: build
    matrix: {python: ["3.11"]}
    run: echo "::set-output ok=yes"
    outputs:
      all: ${{ inputs.tag }} ${{ matrix.python }} ${{ outputs.ok }} ${{ needs.build.outputs.wheel }}
"""


def test_declared_outputs_may_use_outputs_of_needs(site):
    jobs = run_to_end(site, DECLARED, "declared")
    assert jobs["test (3.11)"]["outputs"] == {"ok": "yes", "all": "one 3.11 yes a.whl"}
