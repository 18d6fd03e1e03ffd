"""Query plans and costs of runs on SQLite: statements use indexes, and a finish costs the same in a large run."""

from __future__ import annotations

import re
import sqlite3

import msgspec
import pytest
from sqlite_store_client import fan

from backstay.engine.base import Ping
from backstay.job.stores.sqlite.statements import load
from support.store_client import finish


@pytest.mark.parametrize(
    ("verb", "name", "index"),
    [
        ("run", "find", "backstay_run_id (space=? AND id=?)"),
        ("list_runs", "all", "backstay_run_id (space=? AND id<?)"),
        ("list_runs", "of_workflow", "backstay_run_workflow (space=? AND workflow=? AND id<?)"),
        ("list_runs", "in_status", "backstay_run_status (space=? AND status=? AND id<?)"),
        (
            "list_runs",
            "of_workflow_in_status",
            "backstay_run_workflow_status (space=? AND workflow=? AND status=? AND id<?)",
        ),
        ("events", "of_run", "backstay_run_event_seq (run=? AND seq>?)"),
        ("events", "of_all", "INTEGER PRIMARY KEY (rowid>? AND rowid<?)"),
        ("check_runs", "past_deadline", "backstay_run_deadline (space=? AND deadline>? AND deadline<?)"),
        ("check_runs", "oldest", "backstay_run_checked (space=?)"),
        ("prune", "runs", "backstay_run_keep_until (space=? AND keep_until>? AND keep_until<?)"),
        ("finish", "has_open_blocker", "backstay_job_wait_open (num=?)"),
        ("finish", "unblock", "backstay_job_wait_open (num=?)"),
        ("finish", "blocked", "backstay_job_wait_open (num=?)"),
        ("finish", "has_failed_blocker", "backstay_job_wait_failed (num=?)"),
        ("finish", "dependents", "COVERING INDEX backstay_job_wait_chain (space=? AND chain=? AND outcome=?)"),
        ("definition", "list", "backstay_definition_newest (space=? AND workflow>?)"),
        ("artifact", "list", "backstay_artifact_name (job=?)"),
    ],
)
def test_run_queries_use_their_indexes(client, verb, name, index):
    client.engine.apply(Ping())
    sql = load(verb)[name]
    numbered = [int(n) for n in re.findall(r"\?(\d+)", sql)]
    params = [None] * (max(numbered) if numbered else sql.count("?"))
    with sqlite3.connect(client.path) as db:
        plan = [line for *_, line in db.execute(f"EXPLAIN QUERY PLAN {sql}", params)]
    db.close()
    assert any(line.endswith(index) for line in plan), plan
    sorts = [line for line in plan if "TEMP B-TREE" in line]
    # These two sort few rows: the dependents of the jobs that one exchange finishes, and the files of one job.
    assert not sorts or (verb, name) in (("finish", "dependents"), ("artifact", "list")), plan


def test_the_last_blocker_is_found_without_reading_the_others(client):
    """The finish of each blocker costs the same, however many others the dependent still waits for."""
    client.start_run(fan(400))
    (first,) = client.exchange().jobs
    jobs = client.exchange([finish(first)], want=400).jobs
    early, _ = client.count_steps(client.store.exchange(client.command([finish(jobs[0])], want=0)))
    client.exchange([finish(job) for job in jobs[1:-2]], want=0)
    late, _ = client.count_steps(client.store.exchange(client.command([finish(jobs[-2])], want=0)))
    assert late <= 1.2 * early


def test_a_finish_costs_the_same_in_a_large_run(client):
    costs = []
    for size in (10, 2000):
        client.start_run({"a": [], "b": ["a"], **{f"n{n}": {"delay": 1_000_000} for n in range(size)}})
        (job,) = client.exchange().jobs
        cost, reply = client.count_steps(client.store.exchange(client.command([finish(job)])))
        costs.append(cost)
        assert [job.type for job in reply.jobs] == ["b"]
        client.exchange([finish(job) for job in reply.jobs], want=0)
    few, many = costs
    assert many <= 1.2 * few


def test_a_plain_exchange_runs_no_run_statement(client):
    """Jobs without a run neither read a run nor write an event."""
    statements = []
    client.apply("enqueue", 0, [client.job() for _ in range(10)])
    jobs = client.exchange(want=5).jobs
    op = client.store.exchange(client.command([finish(job) for job in jobs], want=5))

    def traced(db, now, wakes):
        db.set_trace_callback(statements.append)
        try:
            return op.work(db, now, wakes)
        finally:
            db.set_trace_callback(None)

    client.engine.apply(msgspec.structs.replace(op, work=traced))
    assert statements
    assert not [sql for sql in statements if "backstay_run" in sql or "backstay_job_wait" in sql]
