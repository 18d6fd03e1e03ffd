"""One process of a race. In a loop, it acquires a lock, writes to a register that the lock protects, releases the lock,
and records each event in its diary.

`support.races.lock_race` starts it, and stops it by closing its standard input. The same code runs on the blocking and
on the async API.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import random
import signal
import sys
import threading
import time
import traceback
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import backstay
import backstay.sync
from backstay.engine.base import steady
from backstay.errors import EngineError, LockError, NotOwner
from backstay.runtime.flows import run
from backstay.runtime.lease import MARGIN
from backstay.testing.histories.history import HistoryWriter
from backstay.testing.histories.register import Register
from support.stacks import dump_stacks_on

#: The shares of attempts that hold the lock until it must be renewed, that hold it longer than its lease, and that are
#: cancelled soon.
LONG, OVERSTAY, CANCEL = 0.01, 0.02, 0.05
#: The ranges of seconds for which the other attempts hold the lock: most release it at once, some hold it long enough
#: that a fault hits them.
HOLDS = ((0.0, 0.005), (0.0, 0.005), (0.02, 0.1))


class Api(Protocol):
    """The calls that an attempt makes, on either API. The blocking implementation never suspends."""

    async def acquire(self, name: str, permits: int, lock_id: str, *, renew: bool, cancel: bool) -> Any: ...

    async def release(self, lease: Any) -> Any: ...

    async def sleep(self, seconds: float) -> None: ...


@dataclass(frozen=True)
class Blocking:
    """The blocking API, for any number of threads."""

    stay: backstay.sync.Backstay
    ttl: float
    wait: float

    async def acquire(self, name: str, permits: int, lock_id: str, *, renew: bool, cancel: bool) -> Any:
        wait = self.ttl / 20 if cancel else self.wait
        if permits == 1:
            return self.stay.lock(name, ttl=self.ttl, renew=renew).acquire(wait=wait, lock_id=lock_id)
        return self.stay.semaphore(name, permits, ttl=self.ttl, renew=renew).acquire(wait=wait, lock_id=lock_id)

    async def release(self, lease: Any) -> Any:
        return lease.release()

    async def sleep(self, seconds: float) -> None:
        time.sleep(seconds)  # noqa: ASYNC251 - the blocking API blocks its thread


@dataclass(frozen=True)
class Awaiting:
    """The async API, for any number of tasks of one loop."""

    stay: backstay.Backstay
    ttl: float
    wait: float

    async def acquire(self, name: str, permits: int, lock_id: str, *, renew: bool, cancel: bool) -> Any:
        async with asyncio.timeout(self.ttl / 20 if cancel else None):
            if permits == 1:
                return await self.stay.lock(name, ttl=self.ttl, renew=renew).acquire(wait=self.wait, lock_id=lock_id)
            semaphore = self.stay.semaphore(name, permits, ttl=self.ttl, renew=renew)
            return await semaphore.acquire(wait=self.wait, lock_id=lock_id)

    async def release(self, lease: Any) -> Any:
        return await lease.release()

    async def sleep(self, seconds: float) -> None:
        await asyncio.sleep(seconds)


@dataclass(frozen=True)
class Work:
    """The loop of one thread or task: it makes attempts until `stopping` is set."""

    api: Api
    diary: HistoryWriter
    folder: Path
    names: dict[str, int]
    ttl: float
    label: str
    random: random.Random
    stopping: threading.Event

    def run(self) -> None:
        """Run the loop on this thread, with the blocking API."""
        run(self.loop())

    async def loop(self) -> None:
        nth = 0
        while not self.stopping.is_set():
            nth += 1
            name = self.random.choice(list(self.names))
            ticket = f"{self.label}-{nth}"
            try:
                await self.attempt(name, ticket)
            except Exception:
                self.diary.note("stray", name, ticket, what=traceback.format_exc())
                raise

    async def attempt(self, name: str, ticket: str) -> None:
        dice = self.random.random()
        long, overstay = dice < LONG, LONG <= dice < LONG + OVERSTAY
        cancel = self.random.random() < CANCEL
        self.diary.note("asked", name, ticket)
        try:
            lease = await self.api.acquire(name, self.names[name], ticket, renew=not overstay, cancel=cancel)
        except (LockError, EngineError, TimeoutError) as error:
            self.diary.note("refused", name, ticket, why=type(error).__name__, says=str(error))
            await self.api.sleep(self.random.uniform(0.001, 0.02))
            return
        sent = lease.deadline - lease.ttl * (1 - MARGIN)
        self.diary.note(
            "granted", name, ticket, fence=lease.fence, sent=sent, deadline=lease.deadline, at=lease._acquired
        )
        await self.work(
            lease, name, ticket, self.ttl * 1.5 if long or overstay else self.random.uniform(*self.random.choice(HOLDS))
        )
        deadline = lease.deadline
        self.diary.note("leaving", name, ticket, deadline=deadline, lost=str(lease.loss()) if lease.is_lost else "")
        try:
            released = await self.api.release(lease)
        except NotOwner as error:
            self.diary.note("not_owner", name, ticket, deadline=deadline, says=str(error))
        except EngineError as error:
            self.diary.note("unheard", name, ticket, why=type(error).__name__, says=str(error))
        else:
            self.diary.note("released", name, ticket, idempotent=released.idempotent)

    async def work(self, lease: Any, name: str, ticket: str, seconds: float) -> None:
        """Write, hold, and check whether another process wrote while the lease was certainly valid."""
        alone = self.names[name] == 1
        register = Register(self.folder, name)
        accepted = register.write(lease.fence, ticket) if alone else True
        if not accepted and steady() < lease.deadline:
            self.diary.note("overlap", name, ticket, what=f"fence {lease.fence} was refused in a live lease")
        await self.api.sleep(seconds)
        if alone and accepted:
            entry = register.read()
            if entry.owner != ticket and steady() < lease.deadline and not lease.is_lost:
                what = f"{entry.owner} wrote (fence {entry.fence}) beside {ticket}"
                self.diary.note("overlap", name, ticket, what=what)


def threads(args: argparse.Namespace, diary: HistoryWriter, stopping: threading.Event) -> None:
    with backstay.sync.Backstay(args.url, namespace=args.namespace) as stay:
        works = [_work(args, Blocking(stay, args.ttl, args.wait), diary, stopping, i) for i in range(args.parallel)]
        running = [threading.Thread(target=work.run) for work in works]
        for thread in running:
            thread.start()
        for thread in running:
            thread.join()


async def tasks(args: argparse.Namespace, diary: HistoryWriter, stopping: threading.Event) -> None:
    dump_stacks_on(signal.SIGUSR1, asyncio.get_running_loop())
    async with backstay.Backstay(args.url, namespace=args.namespace) as stay:
        works = [_work(args, Awaiting(stay, args.ttl, args.wait), diary, stopping, i) for i in range(args.parallel)]
        await asyncio.gather(*[work.loop() for work in works])


def _work(args: argparse.Namespace, api: Api, diary: HistoryWriter, stopping: threading.Event, nth: int) -> Work:
    label = f"{args.label}.{nth}"
    names = {name: int(permits) for name, _, permits in (item.rpartition("=") for item in args.names)}
    return Work(api, diary, Path(args.folder), names, args.ttl, label, random.Random(f"{args.seed}{label}"), stopping)


def main(argv: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(prog="python -m support.races.contender", description=__doc__)
    parser.add_argument("url")
    parser.add_argument("names", nargs="+", help="name=permits")
    parser.add_argument("--folder", required=True, help="the folder of diaries and registers")
    parser.add_argument("--label", required=True, help="unique among all contenders")
    parser.add_argument("--namespace", default="backstay-race")
    parser.add_argument("--api", choices=("blocking", "async"), default="async")
    parser.add_argument("--ttl", type=float, default=1.0)
    parser.add_argument("--wait", type=float, default=5.0)
    parser.add_argument("--parallel", type=int, default=2)
    parser.add_argument("--seed", default="0")
    args = parser.parse_args(argv)
    dump_stacks_on(signal.SIGUSR1)

    stopping = threading.Event()

    def listen() -> None:
        sys.stdin.read()
        stopping.set()

    threading.Thread(target=listen, daemon=True).start()
    diary = HistoryWriter(Path(args.folder), args.label)
    with contextlib.closing(diary):
        # Retry while the engine is unreachable: outages are part of the race.
        while not stopping.is_set():
            try:
                asyncio.run(tasks(args, diary, stopping)) if args.api == "async" else threads(args, diary, stopping)
                break
            except EngineError:
                stopping.wait(0.1)


if __name__ == "__main__":
    main()
