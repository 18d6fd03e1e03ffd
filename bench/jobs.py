"""Measure jobs beside other queues: draining a queue, enqueuing, and the time until an idle worker starts a job.

Every peer runs once, to find the best one. Then the best peer and Backstay run in alternating rounds, and these are
compared.
"""

from __future__ import annotations

import shutil
import socket
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TypeVar
from urllib.parse import urlsplit

import psycopg
from bench.harness import Bench, Row, Sample, compare, percentile
from bench.queues.contenders import (
    BACKSTAY,
    BACKSTAY_BLOCKING,
    ON_POSTGRES,
    ON_REDIS,
    ON_SQLITE,
    Contender,
    ContenderRun,
    Drain,
    cpu_of,
    prepare,
)

from backstay.testing.servers.postgres import PostgresServer

T = TypeVar("T")
#: A contender with one of the configurations of its worker.
Entry = tuple[ContenderRun, str]
#: A function that deletes all data of the engine, before an entry runs.
Empty = Callable[[ContenderRun], None]


@contextmanager
def folder() -> Iterator[Path]:
    made = Path(tempfile.mkdtemp(prefix="bench-jobs-"))
    try:
        yield made
    finally:
        shutil.rmtree(made, ignore_errors=True)


def entries(contenders: Sequence[Contender], url: str, home: Path) -> list[Entry]:
    return [(ContenderRun(contender, url, home), how) for contender in contenders for how in contender.ways]


def label(entry: Entry) -> str:
    return f"{entry[0].contender.name} ({entry[1]})" if len(entry[0].contender.ways) > 1 else entry[0].contender.name


def choose_size(bench: Bench, rate: float) -> int:
    """Return the number of jobs that take a few seconds at this rate."""
    return max(300, min(60_000, int(rate * bench.pick(4.0, 1.0))))


class Contest:
    """Runs each peer once, then the best peer and Backstay in alternating rounds, and compares these."""

    def __init__(self, bench: Bench, url: str, peers: Sequence[Contender], home: Path, empty: Empty) -> None:
        self.bench = bench
        self.mine: Entry = (ContenderRun(BACKSTAY, url, home), BACKSTAY.ways[0])
        self.peers = entries(peers, url, home)
        self.home = home
        self._empty = empty

    def once(self, what: str, entry: Entry, measure: Callable[[Entry], T]) -> T:
        self.bench.report(f"{what}: {label(entry)}")
        self._empty(entry[0])
        return measure(entry)

    def drain_once(self, what: str, entry: Entry, n: int) -> Drain:
        found = self.once(what, entry, lambda e: e[0].drain(e[1], n))
        if found.missing:
            raise RuntimeError(f"{label(entry)} did not run {found.missing} of {n} jobs")
        return found

    def best(self, first_results: dict[Entry, float], better: Callable[..., Entry]) -> Entry:
        """Return the best peer. Peers that are only shown for comparison (`beside`) are ignored."""
        return better((e for e in first_results if not e[0].contender.beside), key=lambda entry: first_results[entry])

    def drains(self, what: str, peers: Sequence[Entry] | None = None, least: float = 0) -> tuple[Row, float]:
        """Measure how many jobs per second a worker drains from a full queue. Return the row, and the memory of
        Backstay's worker in MiB.
        """
        first_results = {
            entry: self.drain_once(
                what, entry, choose_size(self.bench, self.drain_once(what, entry, 300).sample.rate)
            ).sample.rate
            for entry in (self.peers if peers is None else peers)
        }
        best = self.best(first_results, max)
        mine = choose_size(self.bench, self.drain_once(what, self.mine, 3000).sample.rate)
        theirs = choose_size(self.bench, first_results[best])
        rounds: list[tuple[Drain, Drain]] = [
            (self.drain_once(what, self.mine, mine), self.drain_once(what, best, theirs))
            for _ in range(self.bench.pick(3, 1))
        ]
        row = compare(what, [a.sample for a, _ in rounds], label(best), [b.sample for _, b in rounds], least)
        row.detail["peers"] = {label(entry): f"{rate:,.0f}/s" for entry, rate in first_results.items()}
        return row, max(a.rss_mib for a, _ in rounds)

    def enqueues(self, what: str, way: str, least: float, *, blocks: bool | None = None) -> list[Row]:
        """Measure how many jobs per second one producer enqueues. `blocks`: compare the blocking API with blocking
        clients (True), the async API with async clients (False), or the async API with all clients (None). Rows without
        a target come last.
        """
        own = (
            (ContenderRun(BACKSTAY_BLOCKING, self.mine[0].url, self.home), BACKSTAY_BLOCKING.ways[0])
            if blocks
            else self.mine
        )
        peers = {
            entry[0].contender: entry for entry in self.peers if blocks is None or entry[0].contender.blocks == blocks
        }

        def measure(entry: Entry, n: int) -> Sample:
            return self.once(what, entry, lambda e: e[0].enqueue(way, n))

        first_results: dict[Entry, float] = {}
        for entry in peers.values():
            first_results[entry] = measure(entry, choose_size(self.bench, measure(entry, 300).rate)).rate
        mine = choose_size(self.bench, measure(own, 3000).rate)
        rows: list[Row] = []
        for other in (self.best(first_results, max), *(e for e in first_results if blocks and e[0].contender.beside)):
            theirs = choose_size(self.bench, first_results[other])
            rounds = [(measure(own, mine), measure(other, theirs)) for _ in range(self.bench.pick(3, 1))]
            row = compare(what, [a for a, _ in rounds], label(other), [b for _, b in rounds], least)
            if other[0].contender.beside:
                row.measure, row.target, row.met = f"{what}, beside {label(other)}", "–", None
            else:
                row.detail["peers"] = {label(entry): f"{rate:,.0f}/s" for entry, rate in first_results.items()}
            rows.append(row)
        return rows

    def latencies(self, what: str, peers: Sequence[Entry], most_ms: float | None) -> list[Row]:
        probes = self.bench.pick(200, 40)
        first_results = {
            entry: percentile(self.once(what, entry, lambda e: e[0].latency(e[1], 40)), 50) for entry in peers
        }
        best = self.best(first_results, min)
        others = [best, *(e for e in first_results if e[0].contender.beside)]
        found: dict[Entry, list[float]] = {entry: [] for entry in (self.mine, *others)}
        for _ in range(self.bench.pick(3, 1)):
            for entry in found:
                found[entry] += self.once(what, entry, lambda e: e[0].latency(e[1], probes))
        rows: list[Row] = []
        for other in others:
            beside = other[0].contender.beside
            for percent in (50, 99):
                ours, theirs = percentile(found[self.mine], percent), percentile(found[other], percent)
                limited = most_ms is not None
                met = ours <= theirs if not limited else (ours < most_ms if percent == 50 else None)
                target = "≤ 1×" if not limited else (f"< {most_ms:g} ms" if percent == 50 else "–")
                row = Row(
                    f"{what} p{percent}",
                    f"{ours:.2f} ms",
                    f"{label(other)} {theirs:.2f} ms",
                    ours / theirs,
                    target,
                    met,
                )
                if beside:
                    row.measure, row.target, row.met = f"{row.measure}, beside {label(other)}", "–", None
                elif percent == 50:
                    row.detail["peers"] = {label(entry): f"{ms:.2f} ms" for entry, ms in first_results.items()}
                rows.append(row)
        return rows


def jobs(bench: Bench) -> list[Row]:
    """Measure jobs on Redis."""
    prepare(*ON_REDIS)

    def empty(_: ContenderRun) -> None:
        with bench.client() as client:
            client.flushall()

    with folder() as home:
        contest = Contest(bench, bench.url, ON_REDIS, home, empty)
        drain, rss = contest.drains("drain jobs, Redis", least=7)
        rows = [drain]
        rows += contest.enqueues("enqueue jobs one by one, async, Redis", "one", 1.1, blocks=False)
        rows += contest.enqueues("enqueue jobs one by one, blocking, Redis", "one", 1.1, blocks=True)
        rows += contest.enqueues("enqueue jobs from 100 tasks, Redis", "tasks", 5)
        rows += contest.enqueues("enqueue jobs in bulk, Redis", "many", 5)
        rows += contest.latencies("time from enqueue to start, Redis", contest.peers, None)
        rows.append(idle(bench, contest))
        rows.append(memory(bench, contest, rss))
    return rows


def idle(bench: Bench, contest: Contest) -> Row:
    """Measure the cost of an idle worker: commands per second and CPU."""
    stage, how = contest.mine
    seconds = bench.pick(15.0, 5.0)
    contest.once("idle worker", contest.mine, lambda _: None)
    with stage.worker(how) as process:
        time.sleep(5.0)
        cpu = cpu_of(process.pid)
        commands = _commands(bench.url, seconds) / seconds
        busy = (cpu_of(process.pid) - cpu) / seconds
    met = commands <= 1 and busy <= 0.01
    return Row("idle worker", f"{commands:.2f} commands/s, {busy:.1%} of a core", target="≤ 1/s, ≤ 1 %", met=met)


def _commands(url: str, seconds: float) -> int:
    """Count the commands that clients send within `seconds`, with MONITOR. The server's own counters cannot be used,
    because they include calls from scripts.
    """
    server = urlsplit(url)
    ends = time.perf_counter() + seconds
    received = b""
    with socket.create_connection((server.hostname or "127.0.0.1", server.port or 6379)) as link:
        link.sendall(b"MONITOR\r\n")
        while (left := ends - time.perf_counter()) > 0:
            link.settimeout(left)
            try:
                received += link.recv(65536)
            except TimeoutError:
                break
    lines = received.split(b"\r\n")[1:-1]  # the first line is the OK
    return sum(b" lua] " not in line for line in lines)


def memory(bench: Bench, contest: Contest, least: float) -> Row:
    found = contest.drain_once("memory", contest.mine, bench.pick(100_000, 10_000))
    rss = max(least, found.rss_mib)
    return Row("memory of a worker after 100,000 jobs", f"{rss:.1f} MiB", target="≤ 60 MiB", met=rss <= 60)


def jobs_sql(bench: Bench) -> list[Row]:
    """Measure jobs on SQLite with `synchronous=FULL`, and on PostgreSQL with fsync."""
    prepare(*ON_SQLITE, *ON_POSTGRES)
    rows: list[Row] = []
    with folder() as home:
        path = home / "jobs.db"

        def empty(_: ContenderRun) -> None:
            for found in home.glob("jobs.db*"):
                found.unlink()

        contest = Contest(bench, f"sqlite:///{path}", ON_SQLITE, home, empty)
        row, _ = contest.drains("drain jobs, SQLite", least=7)
        rate = statistics.median(row.detail["backstay"]["rates"])
        rows += [row, Row("the same", f"{rate:,.0f}/s", target="≥ 15,000/s", met=rate >= 15_000)]
    with folder() as home, PostgresServer(settings={"fsync": "on", "full_page_writes": "on"}) as server:

        def recreate(stage: ContenderRun) -> None:
            with psycopg.connect(server.url, autocommit=True) as connection:
                connection.execute("DROP SCHEMA IF EXISTS public CASCADE")
                connection.execute("CREATE SCHEMA public")
                connection.execute("CHECKPOINT")
            if stage.contender is not BACKSTAY:
                stage.run("reset")

        contest = Contest(bench, server.url, ON_POSTGRES, home, recreate)
        for name, least in (("PgQueuer", 1.5), ("Procrastinate", 10)):
            peers = [entry for entry in contest.peers if entry[0].contender.name == name]
            rows.append(contest.drains(f"drain jobs, PostgreSQL, beside {name}", peers, least)[0])
        rows += contest.latencies("time from enqueue to start, PostgreSQL", contest.peers, 5.0)
    return rows
