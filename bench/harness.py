"""Contenders in processes of their own, asked in turns, so that both meet the same noise."""

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

#: Spawned, not forked: a contender inherits no threads and no connections.
CONTEXT = get_context("spawn")
#: A contender that says nothing for this long hangs.
PATIENCE = 120.0


class Sample(NamedTuple):
    """What one slice achieved, in wall and CPU seconds of the contender's process."""

    count: int
    seconds: float
    cpu: float

    @property
    def rate(self) -> float:
        return self.count / self.seconds

    @property
    def cpu_us(self) -> float:
        return self.cpu / max(1, self.count) * 1e6


#: Opens a contender; what it yields is called once per slice.
Contender = Callable[..., AbstractContextManager[Callable[..., Any]]]


class ContenderFailed(Exception):
    """Its trace, as it was over there."""


class Worker:
    """A contender's process: idle until it is told what to do."""

    def __init__(self, contender: Contender, *args: Any) -> None:
        self._pipe, theirs = CONTEXT.Pipe()
        self._process = CONTEXT.Process(target=_serve, args=(theirs, contender, args), daemon=True)
        self._process.start()
        theirs.close()

    def tell(self, *request: Any) -> None:
        with suppress(BrokenPipeError):  # it has failed already: `answer` says why
            self._pipe.send(request)

    def answer(self) -> Any:
        if not self._pipe.poll(PATIENCE):
            raise TimeoutError(f"a contender said nothing for {PATIENCE:g} s")
        answer = self._pipe.recv()
        if isinstance(answer, _Failure):
            raise ContenderFailed(answer.trace)
        return answer

    def ask(self, *request: Any) -> Any:
        self.tell(*request)
        return self.answer()

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
    except BaseException:  # noqa: BLE001 - told to whoever asked, and raised there
        pipe.send(_Failure(traceback.format_exc()))


@dataclass
class Row:
    """One line of the table. `ratio` is what the target speaks of, where there is a peer."""

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
    """What a measure needs: a server, how long it may take, and where to say how far it is."""

    server: RedisServer
    quick: bool
    say: Callable[[str], None]

    @property
    def url(self) -> str:
        return self.server.url

    def pick(self, full: Any, quick: Any) -> Any:
        return quick if self.quick else full

    def interleave(
        self, what: str, contenders: Mapping[str, Worker], rounds: int, *request: Any
    ) -> dict[str, list[Any]]:
        """A, B, B, A, …: one slice each per round; the first round warms up and is dropped."""
        slices: dict[str, list[Any]] = {name: [] for name in contenders}
        for turn in range(rounds + 1):
            order = list(contenders)
            for name in order if turn % 2 else reversed(order):
                self.say(f"{what}: {name}, round {turn} of {rounds}")
                result = contenders[name].ask(*request)
                if turn:
                    slices[name].append(result)
        return slices

    def client(self) -> redis.Redis:
        return redis.Redis.from_url(self.url)


def compare(measure: str, ours: Sequence[Sample], peer: str, theirs: Sequence[Sample], least: float) -> Row:
    """Throughput side by side: the median over rounds of each round's ratio."""
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
    """The machine, as far as it explains the figures."""
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
