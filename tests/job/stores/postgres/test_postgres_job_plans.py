"""Query plans of jobs and runs on PostgreSQL: no statement reads a whole table."""

from __future__ import annotations

import msgspec
import psycopg
import pytest
from postgres_store_client import IDS, job

from backstay.engine.base import Ping
from backstay.engine.postgres.address import parse
from backstay.engine.postgres.engine import OTHERS, PostgresEngine
from backstay.job.exchange import Renewal
from backstay.job.run_model import NewRun
from backstay.job.stores.postgres import claim_heuristics
from support.store_client import SECOND, StoreClient, finish

pytestmark = pytest.mark.postgres


def fill_backlog(admin, namespace, store, engine, rows):
    """Insert many pending and completed jobs of one lane by SQL, which is faster than enqueueing them."""
    (enqueued,) = engine.apply(store.enqueue(0, [job()]))
    columns = [
        c
        for (c,) in admin.execute(
            "SELECT column_name FROM information_schema.columns WHERE table_name = 'backstay_job'"
            " AND column_name <> 'id' ORDER BY ordinal_position"
        )
    ]
    names = ", ".join(columns)
    ended = ", ".join("'completed'" if c == "state" else c for c in columns)
    admin.execute(
        f"INSERT INTO backstay_job (id, {names}) SELECT id || '-' || lpad(n::text, 8, '0'), {names}"  # noqa: S608
        " FROM backstay_job, generate_series(1, %s) n WHERE space = %s AND id = %s",
        (rows, namespace, enqueued.id),
    )
    admin.execute(
        f"INSERT INTO backstay_job_done (id, {names}, finished, keep_until)"  # noqa: S608
        f" SELECT id || '.' || lpad(n::text, 8, '0'), {ended}, 1, 9000000000000000"
        " FROM backstay_job, generate_series(1, %s) n WHERE space = %s AND id = %s",
        (rows, namespace, enqueued.id),
    )


@pytest.fixture
def new_database(backstay_postgres, admin, namespace):
    """An engine and a connection in a new database, whose tables the planner has no statistics of."""
    name = namespace.replace("-", "_")
    admin.execute(f'CREATE DATABASE "{name}"')
    url = backstay_postgres.url.rpartition("/")[0] + f"/{name}"
    engine = PostgresEngine(parse(url), namespace=namespace)
    engine.apply(Ping())
    with psycopg.connect(url, autocommit=True) as inside:
        yield engine, inside
    engine.close_blocking()
    admin.execute(f'DROP DATABASE "{name}" WITH (FORCE)')


@pytest.mark.slow
@pytest.mark.parametrize("known", [True, False], ids=["analysed", "filled after planning"])
def test_no_statement_reads_a_whole_table(new_database, store, namespace, known, monkeypatch):
    monkeypatch.setattr(claim_heuristics, "BUSY_LOOK", 60.0)
    engine, admin = new_database
    worker = StoreClient(engine, store)

    def run_every_operation():
        plain = [job(labels=("l",) * (n % 2)) for n in range(4)]
        engine.apply(store.enqueue(0, plain))
        engine.apply(store.enqueue(0, [job(delay=SECOND * 3600)]))
        jobs = worker.exchange(want=10, labels=("l",)).jobs
        engine.apply(store.renew(0, "w", 30 * SECOND, [Renewal(c.id, c.fence) for c in jobs]))
        finishes = [finish(c) for c in jobs[1:]] + [finish(c, "retry") for c in jobs[:1]]
        worker.exchange(finishes, want=1, labels=("l",))
        engine.apply(store.enqueue(0, [job(queue="alone") for _ in range(2)]))
        assert [len(worker.exchange(want=1, queues=(("alone",),)).jobs) for _ in range(2)] == [1, 1]
        engine.apply(store.get(plain[0].id))
        engine.apply(store.reap(0))
        blocker, waiting = job(), job(delay=SECOND * 3600)
        waiting = msgspec.structs.replace(waiting, after=(blocker.id,))
        engine.apply(store.enqueue(0, [blocker, waiting]))
        engine.apply(store.cancel(blocker.id, "why not"))
        engine.apply(store.trigger(blocker.id))
        engine.apply(store.append_log(blocker.id, 0, [(1, "out", "x")], 1))
        engine.apply(store.cancel(blocker.id, "why not"))
        engine.apply(store.purge("cancelled", limit=1))
        run = IDS.new(0)
        first, then = job(run=run), job(run=run)
        last = job(run=run, after=(first.id, then.id))
        engine.apply(store.start_run(NewRun(id=run, workflow="w", jobs=(first, then, last), keep=1)))
        mine = [c for c in worker.exchange(want=100, labels=("l",)).jobs if c.run == run]
        added = job(after=(first.id,))
        worker.exchange([finish(c, adds=(added,)) for c in mine[:1]] + [finish(c) for c in mine[1:]], want=0)
        engine.apply(store.cancel_run(run, "why not"))
        engine.apply(store.rerun_failed(run))
        engine.apply(store.list_runs(workflow="w"))
        engine.apply(store.list_runs(status="running"))
        engine.apply(store.run_events(run))
        engine.apply(store.events(0))
        engine.apply(store.cancel_run(run, "why not"))
        engine.apply(store.check_runs(0))
        engine.apply(store.prune(0, keep=10, limit=5))

    run_every_operation()
    connections = [engine._store_connections[0].connection, engine._store_connections[OTHERS].connection]
    if known:
        fill_backlog(admin, namespace, store, engine, 20_000)
        admin.execute("ANALYZE")
        for connection in connections:  # all statements are planned again
            connection._session.until = float("inf")
            connection._session.execute("DISCARD PLANS")
    run_every_operation()
    if not known:
        fill_backlog(admin, namespace, store, engine, 20_000)
    plans = []
    for connection in connections:
        session = connection._session
        session.until = float("inf")
        session.execute("LOAD 'auto_explain'")
        session.execute("SET auto_explain.log_min_duration = 0")
        session.execute("SET auto_explain.log_analyze = on")
        session.execute("SET client_min_messages = log")
        session.add_notice_handler(lambda note: plans.append(note.message_primary))
    run_every_operation()
    everything = "\n".join(plans)
    assert "backstay_job_ready" in everything
    assert any("FROM near, mine" in plan for plan in plans)
    for plan in plans:
        assert "Seq Scan" not in plan, plan
        for line in plan.splitlines():
            read = [int(part.split("rows=")[1].split()[0]) for part in line.split("(actual ")[1:] if "rows=" in part]
            assert all(rows < 5000 for rows in read), plan
    finish_plan = next(plan for plan in plans if "gone AS ( DELETE FROM backstay_job" in plan)
    assert "backstay_job_lease" not in finish_plan
    assert "Rows Removed by Filter: 20" not in everything
