"""Measure the cost of a claim with a thousand and with a million pending jobs, over ten types and twenty label sets."""

from __future__ import annotations

import statistics
import tempfile
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from time import perf_counter
from typing import Any

from bench.harness import Bench, Row

from backstay.job.exchange import Claim, ExchangeCommand, ExchangeReply
from backstay.job.ids import Ids
from backstay.job.model import Finish, NewJob
from backstay.sync import Backstay
from backstay.testing.servers.postgres import PostgresServer

TYPES, SETS = 10, 20
#: The number of rounds, and of jobs that each round claims and finishes in one exchange.
ROUNDS, TAKEN = 60, 10
BULK = 5000
MOST = 1.5


class Backlog:
    """A namespace with `jobs` pending jobs, and a worker that has half of their labels."""

    def __init__(self, stay: Backstay, jobs: int) -> None:
        self._stay = stay
        self._store = stay.internals.job_store
        self._seq = 0
        self._ended: tuple[Finish, ...] = ()
        self._labels = tuple(sorted(f"l{i}" for i in range(SETS // 2)))
        ids = Ids()
        for first in range(0, jobs, BULK):
            batch = [
                NewJob(id=ids.new(0), type=f"t{n % TYPES}", args=b"\x90", labels=(f"l{n % SETS}",), priority=n % 3)
                for n in range(first, min(first + BULK, jobs))
            ]
            stay.engine.apply(self._store.enqueue(0, batch))

    def turn(self) -> float:
        """Send one exchange, which finishes the jobs of the previous one and claims new ones. Return its
        milliseconds.
        """
        self._seq += 1
        command = ExchangeCommand(
            shard=0,
            worker="bench",
            incarnation="bench",
            channel=0,
            seq=self._seq,
            finishes=self._ended,
            claim=Claim(want=TAKEN, labels=self._labels),
            not_after=self._stay.engine.now() + 10_000_000,
        )
        began = perf_counter()
        reply: ExchangeReply = self._stay.engine.apply(self._store.exchange(command))
        took = perf_counter() - began
        assert len(reply.jobs) == TAKEN
        self._ended = tuple(Finish(job=job.id, fence=job.fence, kind="complete") for job in reply.jobs)
        return took * 1000


@contextmanager
def engines(bench: Bench) -> Iterator[dict[str, Callable[[str], Any]]]:
    with ExitStack() as stack:
        home = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="bench-backlog-")))
        server = stack.enter_context(PostgresServer(settings={"fsync": "on", "full_page_writes": "on"}))
        urls = {"Redis": bench.url, "SQLite": f"sqlite:///{home}/backlog.db", "PostgreSQL": server.url}
        yield {
            name: lambda space, url=url: stack.enter_context(Backstay(url, namespace=space))
            for name, url in urls.items()
        }


def backlog(bench: Bench) -> list[Row]:
    rows: list[Row] = []
    many = bench.pick(1_000_000, 100_000)
    with bench.client() as client:
        client.flushall()
    with engines(bench) as openers:
        for name, opener in openers.items():
            bench.report(f"backlog, {name}: enqueue {many:,} jobs")
            few, full = Backlog(opener("bench-few"), 1000), Backlog(opener("bench-full"), many)
            took: dict[str, list[float]] = {"few": [], "full": []}
            for turn in range(ROUNDS // 2):
                for which, waiting in (("few", few), ("full", full)) if turn % 2 else (("full", full), ("few", few)):
                    took[which].append(waiting.turn())
            small, large = (statistics.median(took[which][5:]) for which in ("few", "full"))
            rows.append(
                Row(
                    f"claim and finish {TAKEN} of {many:,} jobs, {name}",
                    f"{large:.2f} ms",
                    f"of 1,000: {small:.2f} ms",
                    large / small,
                    f"≤ {MOST:g}×",
                    large / small <= MOST,
                    {"few": small, "full": large},
                )
            )
    with bench.client() as client:
        client.flushall()
    return rows
