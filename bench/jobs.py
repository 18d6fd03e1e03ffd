"""Measure jobs beside other queues: draining, enqueuing, and how soon an idle worker starts a job.

Every contender runs once; then the best peer and Backstay run in alternating rounds, which are compared.
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
    Drain,
    Stage,
    cpu_of,
    prepare,
)

from backstay.testing.servers.postgres import PostgresServer

T = TypeVar("T")
#: A contender and a configuration of its worker.
Entry = tuple[Stage, str]
#: Empties the engine before an entry runs.
Empty = Callable[[Stage], None]


@contextmanager
def folder() -> Iterator[Path]:
    made = Path(tempfile.mkdtemp(prefix="bench-jobs-"))
    try:
        yield made
    finally:
        shutil.rmtree(made, ignore_errors=True)


def entries(contenders: Sequence[Contender], url: str, home: Path) -> list[Entry]:
    return [(Stage(contender, url, home), how) for contender in contenders for how in contender.ways]


def label(entry: Entry) -> str:
    return f"{entry[0].contender.name} ({entry[1]})" if len(entry[0].contender.ways) > 1 else entry[0].contender.name


def sized(bench: Bench, rate: float) -> int:
    """Return the number of jobs for a few seconds at this rate."""
    return max(300, min(60_000, int(rate * bench.pick(4.0, 1.0))))


class Contest:
    """Run each peer once, then the best of them and Backstay in alternating rounds."""

    def __init__(self, bench: Bench, url: str, peers: Sequence[Contender], home: Path, empty: Empty) -> None:
        self.bench = bench
        self.mine: Entry = (Stage(BACKSTAY, url, home), BACKSTAY.ways[0])
        self.peers = entries(peers, url, home)
        self.home = home
        self._empty = empty

    def once(self, what: str, entry: Entry, measure: Callable[[Entry], T]) -> T:
        self.bench.report(f"{what}: {label(entry)}")
        self._empty(entry[0])
        return measure(entry)

    def drained(self, what: str, entry: Entry, n: int) -> Drain:
        found = self.once(what, entry, lambda e: e[0].drain(e[1], n))
        if found.missing:
            raise RuntimeError(f"{label(entry)} did not run {found.missing} of {n} jobs")
        return found

    def best(self, scouted: dict[Entry, float], better: Callable[..., Entry]) -> Entry:
        """Return the best peer among those that the target counts."""
        return better((e for e in scouted if not e[0].contender.beside), key=lambda entry: scouted[entry])

    def drains(self, what: str, peers: Sequence[Entry] | None = None, least: float = 0) -> tuple[Row, float]:
        """Measure jobs per second; also return the memory of Backstay's worker at the end."""
        scouted = {
            entry: self.drained(what, entry, sized(self.bench, self.drained(what, entry, 300).sample.rate)).sample.rate
            for entry in (self.peers if peers is None else peers)
        }
        best = self.best(scouted, max)
        mine = sized(self.bench, self.drained(what, self.mine, 3000).sample.rate)
        theirs = sized(self.bench, scouted[best])
        rounds: list[tuple[Drain, Drain]] = [
            (self.drained(what, self.mine, mine), self.drained(what, best, theirs))
            for _ in range(self.bench.pick(3, 1))
        ]
        row = compare(what, [a.sample for a, _ in rounds], label(best), [b.sample for _, b in rounds], least)
        row.detail["peers"] = {label(entry): f"{rate:,.0f}/s" for entry, rate in scouted.items()}
        return row, max(a.rss_mib for a, _ in rounds)

    def enqueues(self, what: str, way: str, least: float, *, blocks: bool | None = None) -> list[Row]:
        """Measure jobs per second of one producer. `blocks`: the blocking API beside blocking clients (True), the async
        API beside async clients (False), or the async API beside all (None). Peers without a target come last.
        """
        own = (
            (Stage(BACKSTAY_BLOCKING, self.mine[0].url, self.home), BACKSTAY_BLOCKING.ways[0]) if blocks else self.mine
        )
        peers = {
            entry[0].contender: entry for entry in self.peers if blocks is None or entry[0].contender.blocks == blocks
        }

        def measure(entry: Entry, n: int) -> Sample:
            return self.once(what, entry, lambda e: e[0].enqueue(way, n))

        scouted: dict[Entry, float] = {}
        for entry in peers.values():
            scouted[entry] = measure(entry, sized(self.bench, measure(entry, 300).rate)).rate
        mine = sized(self.bench, measure(own, 3000).rate)
        rows: list[Row] = []
        for other in (self.best(scouted, max), *(e for e in scouted if blocks and e[0].contender.beside)):
            theirs = sized(self.bench, scouted[other])
            rounds = [(measure(own, mine), measure(other, theirs)) for _ in range(self.bench.pick(3, 1))]
            row = compare(what, [a for a, _ in rounds], label(other), [b for _, b in rounds], least)
            if other[0].contender.beside:
                row.measure, row.target, row.met = f"{what}, beside {label(other)}", "–", None
            else:
                row.detail["peers"] = {label(entry): f"{rate:,.0f}/s" for entry, rate in scouted.items()}
            rows.append(row)
        return rows

    def latencies(self, what: str, peers: Sequence[Entry], most_ms: float | None) -> list[Row]:
        probes = self.bench.pick(200, 40)
        scouted = {entry: percentile(self.once(what, entry, lambda e: e[0].latency(e[1], 40)), 50) for entry in peers}
        best = self.best(scouted, min)
        others = [best, *(e for e in scouted if e[0].contender.beside)]
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
                    row.detail["peers"] = {label(entry): f"{ms:.2f} ms" for entry, ms in scouted.items()}
                rows.append(row)
        return rows


def jobs(bench: Bench) -> list[Row]:
    """Measure jobs on Redis."""
    prepare(*ON_REDIS)

    def empty(_: Stage) -> None:
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
    """Count the commands of clients in this time with MONITOR; the server's own count includes calls from scripts."""
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
    found = contest.drained("memory", contest.mine, bench.pick(100_000, 10_000))
    rss = max(least, found.rss_mib)
    return Row("memory of a worker after 100,000 jobs", f"{rss:.1f} MiB", target="≤ 60 MiB", met=rss <= 60)


def jobs_sql(bench: Bench) -> list[Row]:
    """Measure jobs on SQLite with `synchronous=FULL`, and on PostgreSQL with fsync."""
    prepare(*ON_SQLITE, *ON_POSTGRES)
    rows: list[Row] = []
    with folder() as home:
        path = home / "jobs.db"

        def empty(_: Stage) -> None:
            for found in home.glob("jobs.db*"):
                found.unlink()

        contest = Contest(bench, f"sqlite:///{path}", ON_SQLITE, home, empty)
        row, _ = contest.drains("drain jobs, SQLite", least=7)
        rate = statistics.median(row.detail["backstay"]["rates"])
        rows += [row, Row("the same", f"{rate:,.0f}/s", target="≥ 15,000/s", met=rate >= 15_000)]
    with folder() as home, PostgresServer(settings={"fsync": "on", "full_page_writes": "on"}) as server:

        def recreate(stage: Stage) -> None:
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
