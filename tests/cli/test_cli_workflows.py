"""`backstay workflows` and `backstay runs`: text and JSON output."""

from __future__ import annotations

import asyncio
import json

import pytest

import backstay
from backstay import Backstay
from backstay.testing.waiting import WITHIN

GOOD = """
name: ci
inputs: {word: {default: hello}}
jobs:
  build: {run: 'echo "built ${{ inputs.word }}"'}
  test: {run: 'echo "tested"; test ! -e broken', needs: build}
  mail: {run: echo sad, needs: test, if: failure()}
"""
BAD = "name: x\njobs:\n  a: {rnu: make}\n  b: {run: x, needs: c}\n"


@pytest.fixture
def files(sqlite_cli):
    good, bad = sqlite_cli.folder / "ci.yml", sqlite_cli.folder / "bad.yml"
    good.write_text(GOOD)
    bad.write_text(BAD)
    return str(good), str(bad)


def work(cli, defines=None, **options):
    """Run a worker until no job is due."""

    async def burst():
        async with Backstay(cli.url, namespace=cli.namespace) as stay:
            if defines is not None:
                defines(stay)
            await stay.worker(signals=False, **options).run(burst=True)

    asyncio.run(burst())


def command_worker(cli):
    work(cli, allow_commands=True, directory=cli.folder)


def test_validate_lists_every_problem_with_its_position(sqlite_cli, files):
    good, bad = files
    fine = sqlite_cli.call("workflows", "validate", good)
    assert fine.exit_code == 0, fine.output
    assert "ci, 3 jobs, no problem" in fine.stdout
    shown = sqlite_cli.call("workflows", "validate", good, bad)
    assert shown.exit_code == 1
    assert f"{bad}:3:7: 'rnu' is not a key of job 'a'; did you mean 'run'?" in shown.stdout
    assert f"{bad}:4:22: job 'b' needs 'c', which does not exist" in shown.stdout
    reply = json.loads(sqlite_cli.call("workflows", "validate", bad, "--json").stdout)
    assert reply["files"][0]["problems"][-1]["line"] == 4
    piped = sqlite_cli.call("workflows", "validate", "-", input=BAD)
    assert piped.exit_code == 1
    assert "-:3:7" in piped.stdout


def test_validate_names_a_file_that_is_too_large(sqlite_cli, tmp_path):
    large = tmp_path / "large.yml"
    large.write_text("name: large\njobs:\n" + "".join(f"  job{n}: {{run: echo {n}}}\n" for n in range(100_000)))
    shown = sqlite_cli.call("workflows", "validate", str(large))
    assert shown.exit_code == 1
    assert f"{large}: the document has " in shown.stdout


def test_validate_needs_no_engine(sqlite_cli, files):
    shown = sqlite_cli.call("--url", "redis://127.0.0.1:1/0", "workflows", "validate", files[0])
    assert shown.exit_code == 0, shown.output


def test_the_schema_is_printed(sqlite_cli):
    assert json.loads(sqlite_cli.call("workflows", "schema").stdout)["required"] == ["jobs"]


def test_workflows_are_stored_listed_and_shown(sqlite_cli, files):
    good, bad = files
    assert "No workflow is stored" in sqlite_cli.call("workflows", "ls").stdout
    put = sqlite_cli.call("workflows", "put", good, bad)
    assert put.exit_code == 1
    assert "ci version 1" in put.stdout
    assert "bad.yml:3:7" in put.stderr
    assert sqlite_cli.json("workflows", "put", good)["workflows"] == [{"name": "ci", "version": 1}]
    assert [one["name"] for one in sqlite_cli.json("workflows", "ls")["workflows"]] == ["ci"]
    shown = sqlite_cli.call("workflows", "show", "ci")
    assert "mail" in shown.stdout
    assert "failure()" in shown.stdout
    assert sqlite_cli.json("workflows", "show", "ci")["definition"]["jobs"]["test"]["needs"] == ["build"]
    missing = sqlite_cli.call("workflows", "show", "nobody")
    assert missing.exit_code == 1
    assert "no workflow 'nobody'" in missing.stderr


def test_a_run_is_started_shown_and_its_logs_read(sqlite_cli, files):
    sqlite_cli.call("workflows", "put", files[0])
    started = sqlite_cli.json("workflows", "start", "ci", "-i", "word=bye")
    assert started["status"] == "queued"
    command_worker(sqlite_cli)
    shown = sqlite_cli.call("runs", "show", started["id"])
    assert shown.exit_code == 0, shown.output
    assert "success" in shown.stdout
    reply = sqlite_cli.json("runs", "show", started["id"])
    assert {job["key"]: job["state"] for job in reply["jobs"]} == {
        "build": "completed",
        "test": "completed",
        "mail": "skipped",
    }
    assert reply["inputs"] == {"word": "bye"}
    pointless = sqlite_cli.call("runs", "retry", started["id"], "mail")
    assert pointless.exit_code == 1
    assert "it runs only if a job that it depends on fails, and none has" in pointless.stderr
    logs = sqlite_cli.call("runs", "logs", started["id"], "--follow")
    assert "build | built bye" in logs.stdout
    one = sqlite_cli.call("runs", "logs", started["id"], "test")
    assert one.stdout.strip() == "tested"
    lines = sqlite_cli.json("runs", "logs", started["id"])["lines"]
    assert [(line["job"], line["data"].strip()) for line in lines] == [("build", "built bye"), ("test", "tested")]


def test_failed_jobs_of_a_run_are_retried(sqlite_cli, files):
    (sqlite_cli.folder / "broken").touch()
    sqlite_cli.call("workflows", "put", files[0])
    run = sqlite_cli.json("workflows", "start", "ci")["id"]
    command_worker(sqlite_cli)
    assert [one["id"] for one in sqlite_cli.json("runs", "ls", "--status", "failure")["runs"]] == [run]
    listed = sqlite_cli.call("runs", "ls", "--workflow", "ci")
    assert run in listed.stdout
    (sqlite_cli.folder / "broken").unlink()
    assert "runs again" in sqlite_cli.call("runs", "rerun", run).stdout
    command_worker(sqlite_cli)
    assert sqlite_cli.json("runs", "show", run)["status"] == "success"
    assert "test is completed" in sqlite_cli.call("runs", "retry", run, "test").stdout
    missing = sqlite_cli.call("runs", "retry", run, "nobody")
    assert missing.exit_code == 1
    assert f"run {run} has no job 'nobody'; it has build, test, mail" in missing.stderr


def test_a_job_is_not_retried_before_its_failed_need(sqlite_cli):
    jobs = "build: {run: test ! -e broken}, test: {run: echo t, needs: build}, ship: {run: echo s, needs: test}"
    (sqlite_cli.folder / "line.yml").write_text(f"name: line\njobs: {{{jobs}}}")
    (sqlite_cli.folder / "broken").touch()
    sqlite_cli.call("workflows", "put", str(sqlite_cli.folder / "line.yml"))
    run = sqlite_cli.json("workflows", "start", "line")["id"]
    command_worker(sqlite_cli)
    refused = sqlite_cli.call("runs", "retry", run, "ship")
    assert refused.exit_code == 1
    assert "ship was skipped and cannot be retried" in refused.stderr
    assert "build failed" in refused.stderr
    assert "retry build" in refused.stderr
    (job,) = [job["job"]["id"] for job in sqlite_cli.json("runs", "show", run)["jobs"] if job["key"] == "test"]
    by_id = sqlite_cli.call("jobs", "retry", job)
    assert by_id.exit_code == 1
    assert "retry build" in by_id.stderr
    (sqlite_cli.folder / "broken").unlink()
    assert "build is pending" in sqlite_cli.call("runs", "retry", run, "build").stdout
    command_worker(sqlite_cli)
    shown = sqlite_cli.json("runs", "show", run)
    assert {job["state"] for job in shown["jobs"]} == {"completed"}


def test_a_run_is_cancelled(sqlite_cli, files):
    sqlite_cli.call("workflows", "put", files[0])
    run = sqlite_cli.json("workflows", "start", "ci")["id"]
    assert "is cancelled" in sqlite_cli.call("runs", "cancel", run, "--reason", "wrong\x1b[31m").stdout
    shown = sqlite_cli.call("runs", "show", run)
    assert "wrong" in shown.stdout
    assert "\x1b[31m" not in shown.stdout
    other = sqlite_cli.json("workflows", "start", "ci")["id"]
    sqlite_cli.call("runs", "cancel", other)
    assert [line.split()[-1] for line in sqlite_cli.call("runs", "show", other).stdout.splitlines()[-3:]] == [
        "Cancelled"
    ] * 3
    for args in (("show",), ("cancel",), ("rerun",), ("logs",)):
        missing = sqlite_cli.call("runs", *args, "0-0")
        assert missing.exit_code == 1, args
        assert "no run '0-0'" in missing.stderr


def test_bad_options_are_refused(sqlite_cli, files):
    sqlite_cli.call("workflows", "put", files[0])
    assert sqlite_cli.call("runs", "ls", "--status", "lost").exit_code == 2
    assert sqlite_cli.call("workflows", "start", "ci", "-i", "nothing").exit_code == 2
    wrong = sqlite_cli.call("workflows", "start", "ci", "-i", "wrod=1")
    assert wrong.exit_code == 2
    assert "did you mean 'word'?" in wrong.stderr


def test_runs_of_python_workflows_are_shown_too(sqlite_cli):
    def defines(stay):
        @stay.job(name="double")
        async def double(n: int) -> int:
            backstay.current_job().log(f"doubling {n}")
            return 2 * n

    stay = sqlite_cli.backstay

    @stay.job(name="double")
    def double(n: int) -> int:
        return 2 * n

    @stay.workflow
    def twice(flow, n: int):
        flow.add(double, flow.add(double, n).output, key="again")

    run = twice.start(3)
    work(sqlite_cli, defines)
    assert run.wait(timeout=WITHIN) == "success"
    assert run.outputs == {"double": 6, "again": 12}
    assert "again | doubling 6" in sqlite_cli.call("runs", "logs", run.id).stdout
    assert "twice.<locals>" not in sqlite_cli.call("workflows", "show", "twice").stdout.partition("defined in")[0]
