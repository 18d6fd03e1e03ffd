"""Run each contender in its own process, in alternating rounds, so that other load on the machine affects all alike."""

from __future__ import annotations

import os
import platform
import statistics
import traceback
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, suppress
from dataclasses import asdict, dataclass, field
from multiprocessing import get_context
from multiprocessing.connection import Connection
from typing import Any, NamedTuple, Self

import redis

from backstay.testing.servers import RedisServer

#: Processes are spawned, not forked, so that a contender inherits no threads and no connections.
CONTEXT = get_context("spawn")
#: Seconds without a result after which a contender counts as hung.
RESULT_TIMEOUT = 120.0


class Sample(NamedTuple):
    """The result of one slice, a short measurement: the number of operations, and the wall and CPU seconds of the
    contender's process.
    """

    count: int
    seconds: float
    cpu: float

    @property
    def rate(self) -> float:
        return self.count / self.seconds

    @property
    def cpu_us(self) -> float:
        return self.cpu / max(1, self.count) * 1e6


#: A context manager that opens a contender and yields a function that runs one slice.
Contender = Callable[..., AbstractContextManager[Callable[..., Any]]]


class ContenderFailed(Exception):
    """A contender raised an exception in its process. The message is the traceback."""


class ContenderProcess:
    """A process that runs a contender: for each request, it runs one slice and sends the result back."""

    def __init__(self, contender: Contender, *args: Any) -> None:
        self._pipe, theirs = CONTEXT.Pipe()
        self._process = CONTEXT.Process(target=_serve, args=(theirs, contender, args), daemon=True)
        self._process.start()
        theirs.close()

    def send(self, *request: Any) -> None:
        with suppress(BrokenPipeError):  # the process has failed: `receive` raises the reason
            self._pipe.send(request)

    def receive(self) -> Any:
        if not self._pipe.poll(RESULT_TIMEOUT):
            raise TimeoutError(f"a contender returned no result for {RESULT_TIMEOUT:g} s")
        result = self._pipe.recv()
        if isinstance(result, _Failure):
            raise ContenderFailed(result.trace)
        return result

    def call(self, *request: Any) -> Any:
        self.send(*request)
        return self.receive()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        with suppress(BrokenPipeError):
            self._pipe.send(None)
        self._process.join(5)
        if self._process.is_alive():
            self._process.kill()
            self._process.join()


@dataclass
class _Failure:
    trace: str


def _serve(pipe: Connection, contender: Contender, args: tuple[Any, ...]) -> None:
    try:
        with contender(*args) as slice_of:
            while (request := pipe.recv()) is not None:
                pipe.send(slice_of(*request))
    except (EOFError, KeyboardInterrupt):
        pass
    except BaseException:  # noqa: BLE001 - sent to the parent process, which raises it
        pipe.send(_Failure(traceback.format_exc()))


@dataclass
class Row:
    """One line of the table. `ratio`: Backstay's figure compared with the peer's; None without a peer. `met`: whether
    the target is met; None without a target.
    """

    measure: str
    backstay: str
    peer: str = "–"
    ratio: float | None = None
    target: str = "–"
    met: bool | None = None
    detail: dict[str, Any] = field(default_factory=dict)

    def as_dict(self) -> dict[str, Any]:
        return asdict(self)


@dataclass
class Bench:
    """What a measure needs: a server, whether the run is quick, and a function that reports progress."""

    server: RedisServer
    quick: bool
    report: Callable[[str], None]

    @property
    def url(self) -> str:
        return self.server.url

    def pick(self, full: Any, quick: Any) -> Any:
        return quick if self.quick else full

    def interleave(
        self, what: str, contenders: Mapping[str, ContenderProcess], rounds: int, *request: Any
    ) -> dict[str, list[Any]]:
        """Run one slice of each contender per round, in the order A, B, B, A, … Return the results by name. The first
        round is a warm-up and is not returned.
        """
        slices: dict[str, list[Any]] = {name: [] for name in contenders}
        for turn in range(rounds + 1):
            order = list(contenders)
            for name in order if turn % 2 else reversed(order):
                self.report(f"{what}: {name}, round {turn} of {rounds}")
                result = contenders[name].call(*request)
                if turn:
                    slices[name].append(result)
        return slices

    def client(self) -> redis.Redis:
        return redis.Redis.from_url(self.url)


def compare(measure: str, ours: Sequence[Sample], peer: str, theirs: Sequence[Sample], least: float) -> Row:
    """Compare throughput. The ratio is computed for each round, and the median of these ratios must reach `least`."""
    ratios = [a.rate / b.rate for a, b in zip(ours, theirs, strict=True)]
    ratio = statistics.median(ratios)
    mine, other = _summary(ours), _summary(theirs)
    return Row(
        measure,
        f"{mine['rate']:,.0f}/s, {mine['cpu_us']:.0f} µs CPU",
        f"{peer} {other['rate']:,.0f}/s, {other['cpu_us']:.0f} µs CPU",
        ratio,
        f"≥ {least:g}×",
        ratio >= least,
        {"backstay": mine, peer: other, "ratios": [round(r, 3) for r in ratios]},
    )


def _summary(samples: Sequence[Sample]) -> dict[str, Any]:
    return {
        "rate": statistics.median(s.rate for s in samples),
        "cpu_us": statistics.median(s.cpu_us for s in samples),
        "rates": [round(s.rate) for s in samples],
    }


def percentile(values: Sequence[float], percent: float) -> float:
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(len(ordered) * percent / 100))]


def facts(server: RedisServer) -> dict[str, str]:
    """Return the facts about the machine and the software that explain the figures."""
    with redis.Redis.from_url(server.url) as client:
        info: dict[str, Any] = client.info("server")
    name = "valkey" if "valkey_version" in info else "redis"
    load = os.getloadavg()
    return {
        "cores": str(len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()),
        "load": f"{load[0]:.1f}",
        "system": f"{platform.system()} {platform.machine()}",
        "python": platform.python_version(),
        name: info[f"{name}_version"],
        "redis-py": redis.__version__,
    }
