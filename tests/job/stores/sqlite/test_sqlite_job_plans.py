"""Query plans and costs of jobs on SQLite: statements use indexes, and claims do not slow down with the backlog."""

from __future__ import annotations

import re
import sqlite3

import pytest

from backstay.engine.base import Ping
from backstay.job.model import Concurrency
from backstay.job.stores.sqlite.statements import FOLDERS, SQL, load
from support.store_client import finish

VERBS = sorted(file.name[:-4] for folder in FOLDERS for file in SQL.joinpath(folder).iterdir())


@pytest.mark.parametrize("verb", VERBS)
def test_no_statement_scans_all_jobs(client, verb):
    """Every statement finds its rows by an index. Kinds, queues and workers are few, so their tables may be scanned."""
    client.engine.apply(Ping())
    few = {"backstay_job_kind", "backstay_job_queue", "backstay_job_worker", "backstay_job_exchange"}
    few |= {"k", "n", "f", "m"}  # their aliases, and json_each
    with sqlite3.connect(client.path) as db:
        for name, sql in load(verb).items():
            numbered = [int(n) for n in re.findall(r"\?(\d+)", sql)]
            params = [None] * (max(numbered) if numbered else sql.count("?"))
            for *_, line in db.execute(f"EXPLAIN QUERY PLAN {sql}", params):
                scanned = re.match(r"SCAN (?!CONSTANT ROW)(\w+)", line)
                allowed = scanned is None or scanned[1] in few or "json_each" in line or "VIRTUAL TABLE" in line
                # SQLite reports max(num) as a scan, but reads only the last row.
                assert allowed or "max(num)" in sql, f"{verb}.{name}: {line}"
    db.close()


@pytest.mark.parametrize(
    ("verb", "name", "index"),
    [
        ("claim", "first", "backstay_job_pending (lane=?)"),
        ("claim", "more", "backstay_job_pending (lane=? AND (rank,id)>(?,?))"),
        ("claim", "running_with_key", "backstay_job_keyed (space=? AND ckey=? AND state=?)"),
        ("reap", "expired", "backstay_job_alarm (space=? AND state=? AND alarm>? AND alarm<?)"),
        ("reap", "due", "backstay_job_alarm (space=? AND state=? AND alarm>? AND alarm<?)"),
        ("prune", "jobs", "backstay_job_alarm (space=? AND state=? AND alarm>? AND alarm<?)"),
        ("finish", "plain", "backstay_job_id (space=? AND id=?)"),
        ("list_jobs", "newest", "backstay_job_listed (space=? AND state=? AND id<?)"),
        ("list_jobs", "newest_of", "COVERING INDEX backstay_job_listed (space=? AND state=? AND id<?)"),
        ("list_jobs", "oldest_of", "COVERING INDEX backstay_job_listed (space=? AND state=?)"),
    ],
)
def test_statements_of_an_exchange_use_an_index_and_sort_nothing(client, verb, name, index):
    client.engine.apply(Ping())
    sql = load(verb)[name]
    with sqlite3.connect(client.path) as db:
        plan = [line for *_, line in db.execute(f"EXPLAIN QUERY PLAN {sql}", [None] * sql.count("?"))]
    db.close()
    assert any(line.endswith(index) for line in plan), plan
    assert not [line for line in plan if "TEMP B-TREE" in line], plan


def test_the_cost_of_a_claim_does_not_grow_with_the_backlog(client):
    """The backlog has 10 types and 20 label sets: first 1,000 jobs, then 21,000."""

    def fill(count):
        client.apply(
            "enqueue",
            0,
            [
                client.job(type=f"t{n % 10}", labels=tuple(f"l{k:02}" for k in range(n // 10 % 20)))
                for n in range(count)
            ],
        )

    labels = tuple(f"l{k:02}" for k in range(20))
    fill(1000)
    few, reply = client.count_steps(client.store.exchange(client.command(want=50, labels=labels)))
    assert len(reply.jobs) == 50
    fill(20_000)
    client.now += 1
    many, reply = client.count_steps(client.store.exchange(client.command(want=50, labels=labels)))
    assert len(reply.jobs) == 50
    assert many <= 1.5 * few


def test_unclaimable_jobs_cost_a_claim_nothing(client):
    client.add()
    alone, reply = client.count_steps(client.store.exchange(client.command(want=1)))
    client.exchange([finish(reply.jobs[0])], want=0)
    client.apply("enqueue", 0, [client.job(labels=("gpu",)) for _ in range(1000)])
    client.add()
    behind, reply = client.count_steps(client.store.exchange(client.command(want=1)))
    assert len(reply.jobs) == 1
    assert behind <= 2 * alone


def test_many_jobs_with_a_full_key_are_parked_in_batches(client):
    """An exchange parks a limited number of jobs, and asks the worker to poll again at once for the others."""
    client.apply("enqueue", 0, [client.job(concurrency=Concurrency("k", 1)) for _ in range(2500)])
    free = client.add()
    first = client.exchange(want=2)
    assert first.next_in == 0
    second = client.exchange(want=2)
    assert [job.id for job in second.jobs] == [free]
    assert client.rows("SELECT pending, parked, running FROM backstay_job_kind") == [(0, 2499, 2)]


def test_jobs_with_a_full_key_are_scanned_once(client):
    """The first claim parks them, so later claims do not read them."""
    client.apply("enqueue", 0, [client.job(concurrency=Concurrency("k", 1)) for _ in range(500)])
    (running,) = client.exchange(want=10).jobs
    client.add()
    claim, reply = client.count_steps(client.store.exchange(client.command(want=10)))
    assert [job.type for job in reply.jobs] == ["work"]
    client.exchange([finish(reply.jobs[0])], want=0)
    client.exchange([finish(running)], want=0)
    assert claim < 200
