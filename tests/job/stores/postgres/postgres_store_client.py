"""Clients, jobs and runs for tests of the job store on PostgreSQL alone."""

from __future__ import annotations

from backstay.engine.base import Ping
from backstay.engine.postgres.address import parse
from backstay.engine.postgres.engine import PostgresEngine
from backstay.errors import EngineError
from backstay.job.ids import Ids
from backstay.job.model import NewJob
from backstay.job.run_model import NewRun
from backstay.job.stores.postgres.store import PostgresStore
from support.store_client import StoreClient

IDS = Ids()


def job(type_="work", **fields):
    return NewJob(id=IDS.new(0), type=type_, **fields)


def plan_run(*blockers, **fields):
    """Return a run with one job per argument: the positions of the jobs that it waits for."""
    id_ = IDS.new(0)
    jobs = []
    for positions in blockers:
        jobs.append(job(run=id_, after=tuple(jobs[position].id for position in positions)))
    return NewRun(id=id_, workflow="w", jobs=tuple(jobs), **fields)


def open_engine(url, namespace):
    """Open an engine whose clock is synchronized with the server's."""
    engine = PostgresEngine(parse(url), namespace=namespace)
    engine.correct_clock(engine.apply(Ping()))
    return engine


class PostgresStoreClient(StoreClient):
    """A client with its own engine."""

    def __init__(self, url, namespace, **options):
        super().__init__(open_engine(url, namespace), PostgresStore(namespace, namespace), **options)

    def close(self):
        self.engine.close_blocking()


def exchange_until_reply(client, command):
    """Send an exchange again until it gets a reply."""
    while True:
        try:
            return client.apply("exchange", command)
        except EngineError:
            continue
