"""Runs on Redis, beyond the conformance suite: dependents, lost replies, wrong counts, events, a Cluster."""

from __future__ import annotations

import contextlib
import time

import pytest
from redis_store_client import RedisStoreClient

from backstay.errors import EngineError, OutcomeUnknown
from backstay.job.model import Failure
from backstay.job.run_model import NewRun
from backstay.testing.proxy import FaultProxy
from backstay.testing.servers import RedisServer
from backstay.testing.servers.redis import say

pytestmark = pytest.mark.redis


@pytest.fixture
def client(clients, backstay_redis):
    """A client with a long timeout: an exchange with ten thousand jobs takes seconds on a busy machine."""
    return clients(f"{backstay_redis.url}?timeout=60")


def states(client, ids):
    return {name: client.apply("get", id_).state for name, id_ in ids.items()}


@pytest.mark.parametrize("width", [2, 30])
class TestWaiting:
    def blockers(self, client, width, when, **more):
        names = [f"b{nth}" for nth in range(width)]
        return client.start_run({**{name: ([], more) for name in names}, "d": (names, {"when": when}), "e": (["d"],)})

    def finish_all(self, client, width, *, failing):
        jobs = client.claim(width)
        kinds = {job.id: "fail" if nth in failing else "complete" for nth, job in enumerate(jobs)}
        for job in jobs:
            client.finish(job, kinds[job.id], error=Failure("E", "x") if kinds[job.id] == "fail" else None)

    @pytest.mark.parametrize(
        ("when", "failing", "expected"),
        [
            ("all_success", (), "pending"),
            ("all_success", (1,), "skipped"),
            ("all_done", (0, 1), "pending"),
            ("any_failure", (), "skipped"),
            ("any_failure", (1,), "pending"),
        ],
    )
    def test_a_job_starts_or_is_skipped_by_the_outcomes_of_its_blockers(self, client, width, when, failing, expected):
        _, ids = self.blockers(client, width, when)
        self.finish_all(client, width, failing=failing)
        assert client.apply("get", ids["d"]).state == expected

    def test_soft_failures_do_not_block_dependents(self, client, width):
        run, ids = self.blockers(client, width, "all_success", soft=True)
        self.finish_all(client, width, failing=range(width))
        (job,) = client.claim(5)
        assert (job.id, set(job.upstream.values())) == (ids["d"], {None})
        client.finish(job)
        client.drain()
        assert client.apply("get_run", run).status == "success"

    def test_a_retried_failure_blocks_its_dependents_again(self, client, width):
        run, ids = self.blockers(client, width, "all_success")
        self.finish_all(client, width, failing=(0, 1))
        assert client.apply("get_run", run).status == "failure"
        assert client.apply("trigger", ids["b0"]) == "pending"
        assert states(client, {"d": ids["d"], "e": ids["e"]}) == {"d": "skipped", "e": "skipped"}
        assert client.apply("trigger", ids["b1"]) == "pending"
        found = client.apply("get", ids["d"])
        assert (found.state, found.waits_for) == ("blocked", tuple(sorted((ids["b0"], ids["b1"]))))
        assert [job.id for job in client.drain()] == [ids["b0"], ids["b1"], ids["d"], ids["e"]]
        assert client.apply("get_run", run).status == "success"

    def test_an_added_job_finds_its_blockers(self, client, width):
        run, ids = self.blockers(client, width, "all_done")
        first, *rest = client.claim(width)
        added = client.job(after=tuple(ids[f"b{nth}"] for nth in range(width)), when="any_failure")
        client.finish(rest[-1], "fail", error=Failure("E", "x"))
        client.finish(first, adds=(added,))
        found = client.apply("get", added.id)
        assert (found.run, len(found.waits_for)) == (run, width - 2)
        for job in rest[:-1]:
            client.finish(job)
        assert client.apply("get", added.id).state == "pending"


def test_a_job_of_another_shard_receives_results_of_run_jobs(clients):
    client = clients(shards=8)
    _, ids = client.start_run({"a": ([],), "b": ([], {"soft": True})}, shard=3)
    other = client.add(5, after=(ids["a"], ids["b"]))
    for job in client.claim(2, shard=3):
        kind = "complete" if job.id == ids["a"] else "fail"
        for each in client.finish(job, kind, result=b"r").outbox:
            client.apply("deliver", 5, [each])
    (job,) = client.claim(shard=5)
    assert (job.id, job.upstream) == (other, {ids["a"]: b"r", ids["b"]: b""})


def test_a_run_start_whose_reply_was_lost_starts_one_run(backstay_redis, clients):
    with FaultProxy(backstay_redis.port) as proxy:
        client = clients(f"{proxy.url}?timeout=0.5")
        client.add(queue="other")
        run = client.ids.new(0)
        new = NewRun(id=run, workflow="w", doc=b"doc", jobs=(client.job(run=run), client.job(run=run)))
        proxy.once("cut-after", b"EVALSHA")
        with pytest.raises(OutcomeUnknown):
            client.apply("start_run", new)
        found = client.apply("start_run", new)
        assert (found.doc, found.counts, found.events) == (b"doc", {"pending": 2}, 3)
        assert len(client.apply("list_jobs", run=run)) == 2


def overwrite_counts(server, namespace, run, counts):
    """Write wrong counts into the record of a run."""
    key = f"{{{namespace}:s0}}:run"
    raw = bytearray(say(server, "HGET", key, run))
    for place, number in counts.items():
        raw[62 + 4 * place : 66 + 4 * place] = number.to_bytes(4, "big")
    say(server, "HSET", key, run, bytes(raw))


SCHEDULED, BLOCKED, PENDING, RUNNING = range(4)


def test_wrong_counts_are_corrected_and_reported_on_redis(client, backstay_redis, namespace):
    run, _ = client.start_fan(5)
    assert client.apply("check_runs", 0) == []
    overwrite_counts(backstay_redis, namespace, run, {PENDING: 7, BLOCKED: 0})
    assert client.apply("get_run", run).counts == {"pending": 7}
    assert client.apply("check_runs", 0) == [run]
    assert client.apply("get_run", run).counts == {"pending": 1, "blocked": 6}
    assert client.apply("check_runs", 0) == []


def test_a_run_with_a_missed_end_is_finished_by_the_check(client, backstay_redis, namespace):
    run, _ = client.start_run({"a": ([],)})
    overwrite_counts(backstay_redis, namespace, run, {BLOCKED: 1})
    client.drain()
    assert client.apply("get_run", run).status == "running"
    assert client.apply("check_runs", 0) == [run]
    assert client.apply("get_run", run).status == "success"
    assert client.apply("run_events", run)[-1].kind == "run_finished"


def test_the_check_visits_all_runs_in_turn(client, backstay_redis, namespace):
    runs = [client.start_run({"a": ([],)})[0] for _ in range(7)]
    overwrite_counts(backstay_redis, namespace, runs[-1], {BLOCKED: 1})
    found = [client.apply("check_runs", 0, 2) for _ in range(4)]
    assert [run for each in found for run in each] == [runs[-1]]


def test_a_page_of_events_may_end_anywhere(client):
    runs = [client.start_fan(12)[0] for _ in range(3)]
    client.drain()
    whole = client.apply("events", 0)
    for size in (1, 5, 7):
        cursor, seen = "", []
        while (page := client.apply("events", 0, cursor, size)).events:
            assert len(page.events) <= size
            seen += page.events
            cursor = page.cursor
        assert tuple(seen) == whole.events
    for run in runs:
        assert [event for event in whole.events if event.run == run] == client.apply("run_events", run)


def test_pruned_runs_do_not_hide_the_remaining_ones(clients):
    client = clients(now=time.time_ns() // 1000)
    start = client.apply("events", 0, "$").cursor
    for _ in range(150):
        client.start_run({"a": ([],)}, keep=1)
    client.drain()
    kept, _ = client.start_run({"a": ([],)})
    client.now += 2
    while client.apply("prune", 0, 0):
        pass
    page = client.apply("events", 0, start)
    assert [event.run for event in page.events] == [kept, kept]
    assert client.apply("events", 0, page.cursor) == type(page)((), page.cursor)


def test_runs_of_all_shards_of_a_cluster(cluster, clients):
    client = clients(cluster.url, shards=8)
    runs = [client.start_fan(20, shard)[0] for shard in range(8)]
    for shard in range(8):
        client.drain(shard)
    assert [run.id for run in client.apply("list_runs")] == runs[::-1]
    assert {run.status for run in client.apply("list_runs", workflow="flow", status="success")} == {"success"}
    assert [len(client.apply("list_jobs", run=run, limit=100)) for run in runs] == [22] * 8
    assert [len(client.apply("events", shard).events) for shard in range(8)] == [68] * 8
    client.apply("put_definition", "flow", "d", b"doc")
    assert client.apply("get_definition", "flow").doc == b"doc"


def test_a_server_that_lost_its_data_knows_no_run(namespace):
    with RedisServer() as server:
        client = RedisStoreClient(server.url, namespace)
        run, _ = client.start_fan(3)
        cursor = client.apply("events", 0).cursor
        server.restart()
        with contextlib.suppress(EngineError):
            client.apply("get_run", run)
        assert client.apply("get_run", run) is None
        assert client.apply("cancel_run", run, "why") is None
        assert client.apply("rerun_failed", run) is None
        assert client.apply("run_events", run) == []
        client.start_fan(3)
        assert len(client.apply("events", 0, cursor).events) == 2
        client.close()
