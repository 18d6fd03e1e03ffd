"""Measure workflow runs: a chain of jobs, the time from one job's end to the next one's start, a wide fan-out beside as
many plain jobs, and the CPU of the pure graph functions. Chains and fans run in a separate process, which contains the
worker.
"""

from __future__ import annotations

import asyncio
import os
import statistics
import tempfile
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import ExitStack, asynccontextmanager, contextmanager
from dataclasses import dataclass
from pathlib import Path
from time import perf_counter, process_time
from typing import Any, NamedTuple

from bench.cpu import cpu_seconds_with_children
from bench.harness import RESULT_TIMEOUT, Bench, ContenderProcess, Row, Sample, percentile

from backstay import Backstay, Flow
from backstay.job.worker.blocking import new_loop
from backstay.testing.servers.postgres import PostgresServer
from backstay.workflow.graph import graph

LINKS = 40
#: Targets: the seconds of a chain, the milliseconds from a job's end to the next start (an edge), and the time of a fan
#: as a multiple of the time of as many plain jobs.
MOST_SECONDS, MOST_MS, MOST_TIMES = 0.5, 5.0, 3.0
#: Target: the CPU per edge in a graph of 10,000 nodes, as a multiple of that in a graph of 1,000. It may grow a little,
#: because large dictionaries do not fit into CPU caches.
MOST_GROWTH = 1.6


class Chained(NamedTuple):
    """The time and CPU of a chain from start to end, and the milliseconds of each edge (a job's end to the next
    start).
    """

    sample: Sample
    edges: list[float]


@contextmanager
def stage(url: str, server: int) -> Iterator[Callable[[str, int], Any]]:
    """Yield a function that runs `chain`, `plain` or `fan` on a new namespace. `server`: the process id of the engine's
    server, whose CPU is counted, too; 0 for SQLite.
    """

    async def perform(what: str, n: int) -> Any:
        async with Backstay(url, namespace=f"bench-{os.getpid()}-{perf_counter():.6f}") as stay:
            return await {"chain": chain, "plain": plain, "fan": fan}[what](stay, n, lambda: _cpu(server))

    with asyncio.Runner(loop_factory=new_loop) as runner:
        yield lambda what, n: runner.run(perform(what, n))


def _cpu(server: int) -> float:
    return process_time() + (cpu_seconds_with_children(server) if server else 0.0)


@asynccontextmanager
async def run_worker(stay: Backstay) -> AsyncIterator[None]:
    """Run a worker in this process; on exit, wait until its last finishes are stored."""
    worker = stay.worker(concurrency=100, signals=False)
    task = asyncio.create_task(worker.run())
    try:
        yield
    finally:
        worker.stop()
        await task


async def chain(stay: Backstay, n: int, cpu: Callable[[], float]) -> Chained:
    """Run `n` chains of `LINKS` jobs, one chain after another. The worker is already running and idle."""
    ends: dict[int, float] = {}
    edges: list[float] = []

    @stay.job()
    async def link(place: int) -> int:
        if place:
            edges.append((perf_counter() - ends[place - 1]) * 1000)
        ends[place] = perf_counter()
        return place

    @stay.workflow
    def chained(flow: Flow) -> None:
        last = flow.add(link, 0)
        for place in range(1, LINKS):
            last = flow.add(link, place, after=last)

    async with run_worker(stay):
        await (await chained.start()).wait(timeout=RESULT_TIMEOUT)
        edges.clear()
        took: list[float] = []
        busy = cpu()
        for _ in range(n):
            began = perf_counter()
            run = await chained.start()
            assert await run.wait(timeout=RESULT_TIMEOUT) == "success"
            took.append(perf_counter() - began)
        return Chained(Sample(n * LINKS, statistics.median(took), cpu() - busy), edges)


async def plain(stay: Backstay, n: int, cpu: Callable[[], float]) -> Sample:
    """Enqueue `n` plain jobs and run them."""
    done = 0
    all_done = asyncio.Event()

    @stay.job()
    async def nothing(place: int) -> int:
        nonlocal done
        done += 1
        if done == n:
            all_done.set()
        return place

    began, busy = perf_counter(), cpu()
    await nothing.enqueue_many([(place,) for place in range(n)])
    async with run_worker(stay):
        await all_done.wait()
    return Sample(n, perf_counter() - began, cpu() - busy)


async def fan(stay: Backstay, n: int, cpu: Callable[[], float]) -> Sample:
    """Run one job, `n` jobs that depend on it, and one job that depends on all of those."""

    @stay.job()
    async def first() -> int:
        return 1

    @stay.job()
    async def nothing(place: int, given: int) -> int:
        return place * given

    @stay.job()
    async def last(found: list[int]) -> int:
        return sum(found)

    @stay.workflow
    def fanned(flow: Flow, width: int) -> None:
        flow.add(last, flow.map(nothing, range(width), flow.add(first).output).output)

    began, busy = perf_counter(), cpu()
    run = await fanned.start(n)
    async with run_worker(stay):
        assert await run.wait(timeout=RESULT_TIMEOUT) == "success"
    sample = Sample(n, perf_counter() - began, cpu() - busy)
    assert run.outputs["last"] == n * (n - 1) // 2
    return sample


@dataclass(frozen=True)
class Engine:
    name: str
    url: str
    server: int


@contextmanager
def engines(bench: Bench) -> Iterator[list[Engine]]:
    with ExitStack() as stack:
        home = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="bench-workflows-")))
        server = stack.enter_context(PostgresServer(settings={"fsync": "on", "full_page_writes": "on"}))
        yield [
            Engine("SQLite", f"sqlite:///{home}/runs.db", 0),
            Engine("Redis", bench.url, bench.server.pid),
            Engine("PostgreSQL", f"{server.url}?timeout=60", server.pid),
        ]


def workflows(bench: Bench) -> list[Row]:
    rows: list[Row] = []
    with engines(bench) as there:
        for engine in there:
            with ContenderProcess(stage, engine.url, engine.server) as program:
                bench.report(f"chain of {LINKS}, {engine.name}")
                rows += chains(engine, program, bench.pick(15, 5))
                rows.append(fans(bench, engine, program))
    bench.report("graph.advance")
    rows.append(advance(bench))
    return rows


def chains(engine: Engine, program: ContenderProcess, runs: int) -> list[Row]:
    found: Chained = program.call("chain", runs)
    rows: list[Row] = []
    if engine.name == "SQLite":
        seconds = found.sample.seconds
        shown = f"{seconds:.3f} s, {found.sample.cpu_us:.0f} µs CPU per job"
        rows.append(
            Row(
                f"chain of {LINKS} jobs in process, {engine.name}",
                shown,
                target=f"< {MOST_SECONDS:g} s",
                met=seconds < MOST_SECONDS,
            )
        )
    middle, most = percentile(found.edges, 50), percentile(found.edges, 99)
    rows.append(
        Row(
            f"time from a job's end to the next one's start, {engine.name}",
            f"p50 {middle:.2f} ms, p99 {most:.2f} ms, {found.sample.cpu_us:.0f} µs CPU",
            target=f"< {MOST_MS:g} ms",
            met=middle < MOST_MS,
            detail={"p50": middle, "p99": most, "cpu_us": found.sample.cpu_us},
        )
    )
    return rows


def fans(bench: Bench, engine: Engine, program: ContenderProcess) -> Row:
    width = bench.pick(10_000, 2000)
    rounds: dict[str, list[Sample]] = {"plain": [], "fan": []}
    for turn in range(bench.pick(3, 1)):
        for what in ("plain", "fan") if turn % 2 == 0 else ("fan", "plain"):
            bench.report(f"{what} {width:,}, {engine.name}")
            rounds[what].append(program.call(what, width))
    times = statistics.median(a.seconds / b.seconds for a, b in zip(rounds["fan"], rounds["plain"], strict=True))
    work = statistics.median(a.cpu / b.cpu for a, b in zip(rounds["fan"], rounds["plain"], strict=True))
    fanned, plainly = (
        statistics.median(sample.seconds for sample in rounds[what]) * 1e6 / width for what in ("fan", "plain")
    )
    cpus = {what: statistics.median(sample.cpu_us for sample in samples) for what, samples in rounds.items()}
    return Row(
        f"fan-out {width:,}, fan-in 1, {engine.name}",
        f"{fanned:.0f} µs per job, {cpus['fan']:.0f} µs CPU",
        f"plain jobs {plainly:.0f} µs, {cpus['plain']:.0f} µs CPU ({work:.2f}×)",
        times,
        f"≤ {MOST_TIMES:g}×",
        times <= MOST_TIMES,
        {what: [sample._asdict() for sample in samples] for what, samples in rounds.items()} | {"cpu_times": work},
    )


def advance(bench: Bench) -> Row:
    """Measure the CPU of `graph.advance` per visited edge, over a whole fan and a whole chain."""
    rounds = bench.pick(7, 3)
    small, large = (statistics.median(_edge_ns(width) for _ in range(rounds)) for width in (1000, 10_000))
    return Row(
        "graph.advance, per edge with 10,000 nodes",
        f"{large:.0f} ns",
        f"with 1,000: {small:.0f} ns",
        large / small,
        f"≤ {MOST_GROWTH:g}×",
        large / small <= MOST_GROWTH,
        {"small_ns": small, "large_ns": large},
    )


def _edge_ns(width: int) -> float:
    edges_visited, cpu = 0, 0.0
    children = [f"child-{n}" for n in range(width)]
    shapes = {
        "fan": [
            graph.JobNode("first"),
            *(graph.JobNode(child, ("first",)) for child in children),
            graph.JobNode("last", tuple(children)),
        ],
        "chain": [graph.JobNode(child, tuple(children[n - 1 : n])) for n, child in enumerate(children)],
    }
    for nodes in shapes.values():
        made = graph.Graph(nodes)
        began = process_time()
        ready = [node.id for node in nodes if made.jobs[node.id].state == "pending"]
        while ready:
            job = ready.pop()
            made.apply(graph.advance(made, graph.JobStarted(job)))
            changes = graph.advance(made, graph.JobCompleted(job))
            made.apply(changes)
            edges_visited += changes.edges_visited
            ready += [id_ for id_, state in changes.moves if state == "pending"]
        cpu += process_time() - began
        assert made.status == "success"
    return cpu / edges_visited * 1e9
