"""Runs on SQLite, beyond the conformance suite: counts, results, deletion, refusals."""

from __future__ import annotations

import sqlite3

import msgspec
import pytest
from sqlite_store_client import NOW, fan

from backstay.errors import ConfigError
from backstay.job.model import Concurrency
from backstay.job.run_model import Artifact, NewRun, TokenRecord
from backstay.job.stores.sqlite.columns import STATES
from support.store_client import finish

DAY = 86_400_000_000
#: The tables with rows of a run or of its jobs.
RUN_TABLES = (
    "backstay_run",
    "backstay_run_doc",
    "backstay_run_event",
    "backstay_job",
    "backstay_job_body",
    "backstay_job_wait",
    "backstay_job_chain",
    "backstay_job_log",
    "backstay_job_output",
    "backstay_artifact",
    "backstay_artifact_part",
    "backstay_job_kind",
)


def test_counts_of_runs_agree_with_their_jobs(client):
    """The counts of a run are updated with every change; a parked job counts as pending."""
    run, ids = client.start_run(
        {
            "a": {"retries": 1},
            "b": {"concurrency": Concurrency("k", 1)},
            "c": {"concurrency": Concurrency("k", 1)},
            "d": {"soft": True},
            "e": {"delay": 5_000_000},
            "f": ["a", "d"],
        }
    )
    jobs = {job.type: job for job in client.exchange().jobs}
    assert sorted(jobs) == ["a", "b", "d"]
    client.exchange([finish(jobs["a"], "retry", delay=5), finish(jobs["d"], "fail")], want=0)
    client.apply("cancel", ids["c"], "no")
    client.apply("trigger", ids["d"])
    client.now += 60_000_000
    client.apply("reap", 0)
    counted = {}
    for state, count in client.rows("SELECT state, count(*) FROM backstay_job GROUP BY state"):
        counted[STATES[state]] = counted.get(STATES[state], 0) + count
    assert client.apply("get_run", run).counts == counted
    assert len(counted) > 3
    assert client.apply("check_runs", 0) == []


def test_wrong_counts_are_corrected_and_reported_on_sqlite(client):
    right, _ = client.start_run({"a": [], "b": ["a"]})
    wrong, _ = client.start_run({"a": [], "b": ["a"]})
    before = client.apply("get_run", wrong)
    with sqlite3.connect(client.path) as db:
        db.execute("UPDATE backstay_run SET pending = 7, blocked = 0, hard_failures = 1 WHERE id = ?", (wrong,))
    db.close()
    assert client.apply("check_runs", 0) == [wrong]
    assert client.apply("get_run", wrong) == before
    assert client.apply("check_runs", 0) == []
    client.drain()
    assert [client.apply("get_run", run).status for run in (right, wrong)] == ["success", "success"]


def test_a_run_whose_end_was_missed_is_finished_by_the_check(client):
    run, _ = client.start_run({"a": []})
    with sqlite3.connect(client.path) as db:
        db.execute("UPDATE backstay_job SET state = 4")
        db.execute("UPDATE backstay_run SET pending = 0, completed = 1")
    db.close()
    assert client.apply("check_runs", 0) == [run]
    assert client.apply("get_run", run).status == "success"
    assert [event.kind for event in client.apply("run_events", run)][-1] == "run_finished"


def test_the_check_visits_every_run_in_turn(client):
    runs = [client.start_run({"a": []})[0] for _ in range(5)]
    with sqlite3.connect(client.path) as db:
        db.execute("UPDATE backstay_run SET pending = 9")
    db.close()
    found = []
    for _ in range(3):
        client.now += 1
        found.append(client.apply("check_runs", 0, limit=2))
    assert [len(ids) for ids in found] == [2, 2, 1]
    assert sorted(id_ for ids in found for id_ in ids) == sorted(runs)


def test_a_result_is_not_copied_to_dependents_in_the_run(client):
    _, ids = client.start_run(fan(50))
    (first,) = client.exchange().jobs
    large = b"r" * 100_000
    jobs = client.exchange([finish(first, result=large)]).jobs
    assert [job.upstream for job in jobs] == [{ids["first"]: large}] * 50
    assert client.rows("SELECT count(*) FROM backstay_job_wait WHERE result IS NOT NULL") == [(0,)]
    (last,) = client.exchange([finish(job, result=job.type.encode()) for job in jobs]).jobs
    assert last.upstream == {ids[f"m{n}"]: f"m{n}".encode() for n in range(50)}


def test_a_dependent_outside_the_run_has_a_copy_of_the_result(client):
    """The dependent may outlive the run that it waited for."""
    run, ids = client.start_run({"a": [], "b": ["a"]}, keep=0)
    outside = client.add(after=(ids["a"],), labels=("rare",))
    (job,) = client.exchange().jobs
    (job,) = client.exchange([finish(job, result=b"of a")]).jobs
    client.exchange([finish(job)], want=0)
    assert client.apply("prune", 0, 1000) > 0
    assert client.apply("get_run", run) is None
    (job,) = client.exchange(labels=("rare",)).jobs
    assert (job.id, job.upstream) == (outside, {ids["a"]: b"of a"})


def test_the_result_of_a_chain_is_that_of_its_last_job(client):
    _, ids = client.start_run({"a": [], "b": ["a"]})
    (job,) = client.exchange().jobs
    (job,) = client.exchange([finish(job, result=b"first", next=client.job(type="more", chain=job.chain))]).jobs
    (job,) = client.exchange([finish(job, result=b"second")]).jobs
    assert job.upstream == {ids["a"]: b"second"}


def test_a_dependent_added_after_the_end_is_released_when_both_are_retried(client):
    run, ids = client.start_run({"a": []})
    (job,) = client.exchange().jobs
    late = client.job(type="late", run=run, after=(ids["a"],), when="all_done")
    client.exchange([finish(job, "fail")], want=0)
    client.apply("enqueue", 0, [late])
    (job,) = client.exchange().jobs
    client.exchange([finish(job, "fail")], want=0)
    assert client.apply("trigger", ids["a"]) == "pending"
    assert client.apply("trigger", late.id) == "blocked"
    (job,) = client.exchange().jobs
    (job,) = client.exchange([finish(job, result=b"now")]).jobs
    assert job.upstream == {ids["a"]: b"now"}
    client.exchange([finish(job, "fail")], want=0)
    client.apply("trigger", ids["a"])  # a completed job is not retried
    assert client.apply("rerun_failed", run).counts == {"completed": 1, "pending": 1}


def test_pruning_a_run_deletes_all_its_rows(client):
    run, ids = client.start_run({"a": {"args": b"x" * 5000}, "b": ["a"]}, keep=DAY)
    (job,) = client.exchange().jobs
    client.apply("append_log", job.id, job.fence, [(NOW, "stdout", "line")], 1)
    for part in range(2):
        artifact = Artifact(job=job.id, name="f", size=8, digest="d")
        assert client.apply("put_artifact", artifact, job.fence, part, b"data", last=part == 1)
    (job,) = client.exchange([finish(job, outputs={"k": "v"}, next=client.job(chain=job.chain))]).jobs
    client.exchange([finish(job)])
    client.apply("cancel_run", run, "enough")
    (job,) = [client.apply("get", ids["b"])]
    client.exchange([finish(job)], want=0)
    assert client.apply("get_run", run).status == "cancelled"
    full = {table: client.rows(f"SELECT count(*) FROM {table}") for table in RUN_TABLES}  # noqa: S608 - names above
    assert all(count > [(0,)] for count in full.values()), full
    client.now += DAY - 1
    assert client.apply("prune", 0, 0) == 0
    client.now += 1
    assert client.apply("prune", 0, 0) > 0
    left = {table: client.rows(f"SELECT count(*) FROM {table}") for table in RUN_TABLES}  # noqa: S608 - names above
    assert all(count == [(0,)] for count in left.values()), left


def test_jobs_of_runs_do_not_count_toward_job_retention(client):
    """Only jobs without a run are deleted one by one; jobs of a run are deleted with it."""
    run, _ = client.start_run({f"n{n}": [] for n in range(20)})
    client.drain()
    plain = [client.add() for _ in range(3)]
    client.drain()
    assert client.apply("prune", 0, 3) == 0
    assert client.apply("prune", 0, 2) == 1
    assert [client.apply("get", id_) is None for id_ in plain] == [True, False, False]
    assert client.apply("purge", "completed") == 2
    assert client.apply("get_run", run).counts == {"completed": 20}
    assert len(client.apply("list_jobs", run=run)) == 20


def test_jobs_of_runs_and_others_share_a_lane(client):
    """They are claimed in the order in which they became due."""
    client.add(type="plain")
    client.now += 1
    client.start_run({"a": []})
    client.now += 1
    client.add(type="plain")
    assert len(client.rows("SELECT DISTINCT lane FROM backstay_job_kind")) == 1
    assert [job.type for job in client.exchange().jobs] == ["plain", "a", "plain"]


def test_a_refused_run_stores_nothing(client):
    known = client.add()
    label = client.ids.new(0)
    client.add(run=label)
    fresh = client.ids.new(0)
    bad = [
        NewRun(id=fresh, workflow="w", jobs=(client.job(run=fresh), client.job(run=fresh, after=(known,)))),
        NewRun(id=fresh, workflow="w", jobs=(msgspec.structs.replace(client.job(run=fresh), id=known),)),
        NewRun(id=fresh, workflow="w", jobs=(client.job(run=fresh, queue="a NUL \0 inside"),)),
        NewRun(id=fresh, workflow="lone \ud800 surrogate"),
        NewRun(id=fresh, workflow="w", timeout=2**63),
        NewRun(id=label, workflow="w"),
    ]
    for run in bad:
        with pytest.raises(ConfigError):
            client.apply("start_run", run)
    assert client.rows("SELECT count(*) FROM backstay_run") == [(0,)]
    assert client.rows("SELECT count(*) FROM backstay_job") == [(2,)]


def test_reading_runs_takes_no_write_lock(client):
    run, ids = client.start_run({"a": []})
    client.apply("put_definition", "w", "d", b"doc")
    client.apply("put_token", TokenRecord(id="t", digest=b"d", role="admin"))
    with sqlite3.connect(client.path, isolation_level=None) as db:
        db.execute("BEGIN IMMEDIATE")
        db.execute("UPDATE backstay_run SET status = 3")
        assert client.apply("get_run", run).status == "queued"
        assert [found.id for found in client.apply("list_runs", workflow="w", status="queued")] == [run]
        assert len(client.apply("run_events", run)) == len(client.apply("events", 0).events) == 2
        assert client.apply("get_definition", "w").version == 1
        assert len(client.apply("list_definitions")) == len(client.apply("tokens")) == 1
        assert client.apply("list_artifacts", ids["a"]) == []
        assert client.apply("read_artifact", ids["a"], "f", 0) is None
        db.execute("ROLLBACK")
    db.close()
