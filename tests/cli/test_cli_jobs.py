"""`backstay jobs` and `backstay queues`: text and JSON output."""

from __future__ import annotations

import asyncio

import pytest

import backstay
from backstay import Backstay, fixed, sync
from support.command_line import Cli


def run_worker(cli):
    """Run a worker until no job is due."""

    async def burst():
        stay = Backstay(cli.url, namespace=cli.namespace)

        @stay.job(name="fine")
        async def fine(n: int) -> int:
            ctx = backstay.current_job()
            ctx.log(f"line {n}")
            ctx.outputs["half"] = str(n / 2)
            return n + 1

        @stay.job(name="broken", backoff=fixed(0))
        async def broken(n: int) -> None:
            raise ValueError(f"cannot do {n}\x1b[31m")

        async with stay:
            await stay.worker(signals=False).run(burst=True)

    asyncio.run(burst())


@pytest.fixture
def jobs(sqlite_cli):
    """A completed, a failed, a pending and a delayed job."""
    stay = sqlite_cli.backstay
    done = stay.jobs.enqueue("fine", {"n": 1})
    dead = stay.jobs.enqueue("broken", {"n": 2}, retries=0, queue="default")
    run_worker(sqlite_cli)
    return {
        "done": done.id,
        "dead": dead.id,
        "pending": stay.jobs.enqueue("fine", {"n": 3}, queue="mail").id,
        "later": stay.jobs.enqueue("fine", {"n": 4}, delay=600).id,
    }


def test_ls_shows_every_job_and_its_state(sqlite_cli, jobs):
    shown = sqlite_cli.call("jobs", "ls")
    assert shown.exit_code == 0, shown.output
    for id_ in jobs.values():
        assert id_ in shown.stdout
    assert "due in" in shown.stdout
    assert "\x1b[31m" not in shown.stdout
    found = sqlite_cli.json("jobs", "ls", "--state", "failed")["jobs"]
    assert [job["id"] for job in found] == [jobs["dead"]]
    assert sqlite_cli.json("jobs", "ls", "--queue", "mail", "--type", "fine")["jobs"][0]["id"] == jobs["pending"]
    first = sqlite_cli.json("jobs", "ls", "--limit", "1")["jobs"]
    second = sqlite_cli.json("jobs", "ls", "--limit", "1", "--before", first[0]["id"])["jobs"]
    assert first != second
    assert sqlite_cli.call("jobs", "ls", "--state", "odd").exit_code == 2


def test_show_prints_every_field_of_a_job(sqlite_cli, jobs):
    shown = sqlite_cli.call("jobs", "show", jobs["dead"])
    assert "ValueError: cannot do 2" in shown.stdout
    assert "raise ValueError" in shown.stdout
    found = sqlite_cli.json("jobs", "show", jobs["done"])
    assert (found["state"], found["result"], found["args"]) == ("completed", 2, {"n": 1})
    assert found["outputs"] == {"half": "0.5"}
    assert '{"half": "0.5"}' in sqlite_cli.call("jobs", "show", jobs["done"]).stdout
    missing = sqlite_cli.call("jobs", "show", "0-nothing")
    assert missing.exit_code == 1
    assert "no job" in missing.stderr


def test_arguments_that_json_cannot_represent_are_shown(sqlite_cli):
    odd = {"raw": b"\xff", "pairs": {(1, 2): {None: float("nan")}}, "by": {b"\xff": 1}}
    id_ = sqlite_cli.backstay.jobs.enqueue("odd", odd).id
    args = {"raw": "/w==", "pairs": {"(1, 2)": {"None": None}}, "by": {"b'\\xff'": 1}}
    assert sqlite_cli.json("jobs", "ls")["jobs"][0]["args"] == args
    assert sqlite_cli.json("jobs", "show", id_)["args"] == args
    for words in (("ls",), ("show", id_)):
        shown = sqlite_cli.call("jobs", *words)
        assert (shown.exit_code, "/w==" in shown.stdout) == (0, True), shown.output


def test_logs_are_shown_and_followed_to_the_end(sqlite_cli, jobs):
    assert sqlite_cli.call("jobs", "logs", jobs["done"]).stdout == "line 1\n"
    assert sqlite_cli.call("jobs", "logs", jobs["done"], "--follow").stdout == "line 1\n"
    assert [line["data"] for line in sqlite_cli.json("jobs", "logs", jobs["done"])["lines"]] == ["line 1"]


def test_cancel_and_retry(sqlite_cli, jobs):
    assert sqlite_cli.json("jobs", "cancel", jobs["later"], "--reason", "no need")["state"] == "cancelled"
    assert sqlite_cli.json("jobs", "show", jobs["later"])["error"]["message"] == "no need"
    assert sqlite_cli.json("jobs", "retry", jobs["later"])["state"] == "pending"
    assert "is pending" in sqlite_cli.call("jobs", "retry", jobs["dead"]).stdout
    assert sqlite_cli.call("jobs", "retry", "0-nothing").exit_code in {1, 2}


def test_the_dead_letter_is_listed_retried_and_purged(sqlite_cli, jobs):
    assert jobs["dead"] in sqlite_cli.call("jobs", "dead").stdout
    assert sqlite_cli.json("jobs", "dead", "--retry-all") == {"retried": 1}
    run_worker(sqlite_cli)
    assert sqlite_cli.json("jobs", "dead", "--purge", "--yes") == {"deleted": 1}
    assert sqlite_cli.call("jobs", "dead").stdout == "The dead letter is empty.\n"
    assert sqlite_cli.call("jobs", "dead", "--purge", "--retry-all").exit_code == 2


def test_queues_are_listed_paused_resumed_and_drained(sqlite_cli, jobs):
    queues = {queue["name"]: queue for queue in sqlite_cli.json("queues", "ls")["queues"]}
    assert queues["mail"]["pending"] == 1
    assert "mail" in sqlite_cli.call("queues", "ls").stdout
    assert sqlite_cli.json("queues", "pause", "mail")["paused"] is True
    assert "paused" in sqlite_cli.call("queues", "ls").stdout
    assert sqlite_cli.json("queues", "resume", "mail")["paused"] is False
    assert sqlite_cli.json("queues", "drain", "mail", "--timeout", "5s")["running"] == 0


@pytest.mark.redis
def test_jobs_of_all_shards_are_listed(tmp_path, backstay_redis, namespace, monkeypatch):
    cli = Cli(backstay_redis.url, namespace, tmp_path)
    with sync.Backstay(cli.url, namespace=namespace, shards=4) as stay:
        ids = {stay.jobs.enqueue("fine", {"n": n}).id for n in range(12)}
    assert {job["id"] for job in cli.json("--shards", "4", "jobs", "ls")["jobs"]} == ids
    assert cli.json("--shards", "4", "queues", "pause", "default")["pending"] == 12
    refused = cli.call("jobs", "ls")
    assert refused.exit_code == 2
    assert "--shards 4" in refused.stderr
    monkeypatch.setenv("BACKSTAY_SHARDS", "4")
    for id_ in ids:
        assert cli.json("jobs", "cancel", id_)["state"] == "cancelled"
    assert cli.json("token", "create", "--role", "worker", "--name", "w")["role"] == "worker"
    monkeypatch.setenv("BACKSTAY_SHARDS", "many")
    assert "BACKSTAY_SHARDS" in cli.call("jobs", "ls").stderr


def test_sqlite_ignores_the_number_of_shards(sqlite_cli, jobs, monkeypatch):
    monkeypatch.setenv("BACKSTAY_SHARDS", "4")
    assert len(sqlite_cli.json("jobs", "ls")["jobs"]) == len(jobs)
    assert sqlite_cli.call("--shards", "4", "jobs", "ls").exit_code == 2
