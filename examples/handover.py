"""Five processes share one lock, one of them dies, one of them oversleeps.

Everything here is real: operating system processes, one SQLite file in a temporary folder, kill -9 and SIGSTOP.
What the run claims is checked at the end; the exit code is 0 only if all of it was so.
"""

from __future__ import annotations

import multiprocessing
import os
import signal
import sqlite3
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import datetime
from multiprocessing.connection import Connection, wait
from pathlib import Path
from typing import Any, Protocol

from backstay import Event, LeaseLost
from backstay.sync import Backstay

NAMES = ("Ada", "Bo", "Cleo", "Dev", "Eve")
ROUNDS = 3
#: How long each turn takes, and the leases of the two accidents, in seconds.
WORK, CRASH_TTL, STALE_TTL = 0.12, 1.5, 1.0
#: Nothing here takes longer; what does has gone wrong.
PATIENCE = 20.0


# ── the workers: what your program would do ──


def take_turns(stay: Backstay, tell: Callable[..., None], _: Connection, rounds: int) -> None:
    for _turn in range(rounds):
        with stay.lock("printer", ttl=10) as lease:
            tell("holds", fence=lease.fence, since=lease.acquired_at)
            time.sleep(WORK)
            tell("lets go")


def hold_until_killed(stay: Backstay, tell: Callable[..., None], _: Connection) -> None:
    with stay.lock("printer", ttl=CRASH_TTL) as lease:
        tell("holds", fence=lease.fence, since=lease.acquired_at)
        time.sleep(PATIENCE)


def hold_and_oversleep(stay: Backstay, tell: Callable[..., None], orders: Connection, ledger: str) -> None:
    try:
        with stay.lock("printer", ttl=STALE_TTL, renew=False) as lease:
            tell("holds", fence=lease.fence, since=lease.acquired_at)
            orders.recv()  # stopped here, and woken long after the lease has ended
            accepted = guarded_write(ledger, "written by somebody who overslept", lease.fence)
            tell("writes", fence=lease.fence, accepted=accepted)
    except LeaseLost as loss:
        tell("hears of it", reason=loss.reason)


def take_over_and_write(stay: Backstay, tell: Callable[..., None], _: Connection, ledger: str) -> None:
    with stay.lock("printer", ttl=10) as lease:
        tell("holds", fence=lease.fence, since=lease.acquired_at)
        accepted = guarded_write(ledger, "written by the holder", lease.fence)
        tell("writes", fence=lease.fence, accepted=accepted)
        tell("lets go")


def guarded_write(ledger: str, text: str, fence: int) -> bool:
    """The whole trick: the row remembers the highest fence that wrote it and refuses every lower one."""
    db = sqlite3.connect(ledger, timeout=10)
    try:
        with db:
            done = db.execute("UPDATE page SET text = ?, fence = ? WHERE fence <= ?", (text, fence, fence))
        return done.rowcount == 1
    finally:
        db.close()


TASKS = {task.__name__: task for task in (take_turns, hold_until_killed, hold_and_oversleep, take_over_and_write)}


def worker(url: str, orders: Connection) -> None:
    """One process: does what it is told and tells what it does."""

    def tell(what: str, **facts: Any) -> None:
        orders.send((time.monotonic(), what, facts))

    def queued(event: Event) -> None:
        if event.kind == "lock.queued":
            tell("waits")

    with Backstay(url) as stay:
        stay.telemetry.subscribe(queued)
        tell("is ready")
        while (order := orders.recv()) is not None:
            task, *args = order
            TASKS[task](stay, tell, orders, *args)
            tell("is done")


# ── the stage: starts them, watches them, remembers what they told ──


@dataclass
class Seen:
    """Something that happened."""

    at: float
    who: str
    what: str
    facts: dict[str, Any]


class Screen(Protocol):
    def act(self, title: str) -> None: ...

    def event(self, seen: Seen, states: dict[str, tuple[str, str]]) -> None: ...

    def close(self) -> None: ...


@dataclass
class Stage:
    """The five processes."""

    screen: Screen
    processes: dict[str, Any] = field(default_factory=dict)
    lines: dict[str, Connection] = field(default_factory=dict)
    states: dict[str, tuple[str, str]] = field(default_factory=dict)
    seen: list[Seen] = field(default_factory=list)
    #: Where the present act begins in `seen`.
    mark: int = 0

    def start(self, url: str) -> None:
        context = multiprocessing.get_context("spawn")
        for name in NAMES:
            ours, theirs = context.Pipe()
            process = context.Process(target=worker, args=(url, theirs), name=name, daemon=True)
            process.start()
            theirs.close()
            self.processes[name], self.lines[name] = process, ours
            self.states[name] = ("starts", "")
        for name in NAMES:
            self.await_word(name, "is ready")

    def act(self, title: str) -> None:
        self.mark = len(self.seen)
        self.screen.act(title)

    def order(self, name: str, task: Callable[..., None] | None, *args: Any) -> None:
        self.lines[name].send(None if task is None else (task.__name__, *args))

    def send_signal(self, name: str, number: signal.Signals, what: str) -> Seen:
        os.kill(self.processes[name].pid, number)
        return self.note(Seen(time.monotonic(), name, what, {}))

    def note(self, seen: Seen) -> Seen:
        """Remember what happened and show it."""
        self.seen.append(seen)
        fence = str(seen.facts.get("fence", ""))
        self.states[seen.who] = (seen.what, fence)
        self.screen.event(seen, self.states)
        return seen

    def told(self, what: str, who: str = "") -> list[Seen]:
        """What was told in this act."""
        return [seen for seen in self.seen[self.mark :] if seen.what == what and who in ("", seen.who)]

    def watch(self, seconds: float) -> None:
        """Read what the workers tell, for at most that long, until there is something."""
        heard: list[Seen] = []
        for line in wait(list(self.lines.values()), timeout=seconds):
            name = next(name for name, known in self.lines.items() if known is line)
            try:
                while self.lines[name].poll():
                    at, what, facts = self.lines[name].recv()
                    heard.append(Seen(at, name, what, facts))
            except (EOFError, ConnectionError):  # killed
                del self.lines[name]
        for seen in sorted(heard, key=lambda seen: seen.at):
            self.note(seen)

    def until(self, done: Callable[[], object], what: str) -> None:
        """Watch until it is so."""
        deadline = time.monotonic() + PATIENCE
        while not done():
            if time.monotonic() > deadline:
                raise SystemExit(f"never seen: {what}")
            self.watch(0.005)

    def await_word(self, who: str, what: str) -> Seen:
        """Watch until `who` has told `what` in this act."""
        self.until(lambda: self.told(what, who), f"{who} {what}")
        return self.told(what, who)[-1]

    def close(self) -> None:
        for name in self.lines:
            self.order(name, None)
        for process in self.processes.values():
            process.join(timeout=5)
            process.kill()


# ── the three acts ──


@dataclass
class Claims:
    """What the run says it saw, and whether it did."""

    rows: list[tuple[bool, str]] = field(default_factory=list)

    def add(self, held: bool, text: str) -> None:
        self.rows.append((held, text))


def queue_up(stage: Stage, stay: Backstay, name: str, task: Callable[..., None], *args: Any, place: int) -> None:
    """Send one worker to the lock and watch until so many hold it or wait for it, and it has said so itself."""
    stage.order(name, task, *args)
    stage.until(lambda: stay.locks.inspect("printer").count >= place, f"{name} in the queue")
    stage.until(lambda: stage.told("waits", name) or stage.told("holds", name), f"{name}'s word")


def everybody_gets_a_turn(stage: Stage, stay: Backstay, claims: Claims) -> None:
    stage.act(f"Five processes queue for one lock, {ROUNDS} turns each")
    with stay.lock("printer"):  # busy until all five stand in line
        for place, name in enumerate(NAMES, start=2):
            queue_up(stage, stay, name, take_turns, ROUNDS, place=place)
    for name in NAMES:
        stage.await_word(name, "is done")

    asked, granted, let_go = stage.told("waits"), stage.told("holds"), stage.told("lets go")
    claims.add(
        [seen.who for seen in asked] == [seen.who for seen in granted],
        f"first come, first served: {len(granted)} grants in the order of asking",
    )
    fences = [seen.facts["fence"] for seen in granted]
    claims.add(fences == sorted(set(fences)), "every grant had a higher fence than the one before")
    claims.add(
        all(after.at >= before.at for before, after in zip(let_go, granted[1:], strict=False)),
        "never two holders at a time",
    )
    times = [(after.at - before.at) * 1000 for before, after in zip(let_go, granted[1:], strict=False)]
    p50, worst = statistics.median(times), max(times)
    claims.add(bool(times), f"hand-over between processes: p50 {p50:.1f} ms, worst {worst:.1f} ms of {len(times)}")


def a_holder_dies(stage: Stage, stay: Backstay, claims: Claims) -> None:
    stage.act(f"Ada holds a lease of {CRASH_TTL:g} s, kept alive by renewal. kill -9")
    queue_up(stage, stay, "Ada", hold_until_killed, place=1)
    queue_up(stage, stay, "Bo", take_turns, 1, place=2)
    queue_up(stage, stay, "Cleo", take_turns, 1, place=3)
    dead = stage.await_word("Ada", "holds")
    enough = dead.at + CRASH_TTL + 0.3  # to see that renewal kept it
    stage.until(lambda: time.monotonic() > enough, "time")
    renewed = not stage.told("holds", "Bo") and stay.locks.inspect("printer").holders[0].fence == dead.facts["fence"]
    claims.add(renewed, f"renewal kept the lease past its {CRASH_TTL:g} s while its holder lived")

    killed = stage.send_signal("Ada", signal.SIGKILL, "is killed")
    ends = datetime.fromisoformat(stay.locks.inspect("printer").holders[0].expires_at)
    heir = stage.await_word("Bo", "holds")
    stage.await_word("Cleo", "is done")
    late = (heir.facts["since"] - ends).total_seconds()
    waited = heir.at - killed.at
    claims.add(
        0 <= late < 1 and [seen.who for seen in stage.told("holds")] == ["Ada", "Bo", "Cleo"],
        f"kill -9: the next in line held it {waited:.2f} s later, {late * 1000:.0f} ms after the lease had ended",
    )
    claims.add(heir.facts["fence"] > dead.facts["fence"], "and its fence is higher than the dead holder's")


def a_holder_oversleeps(stage: Stage, stay: Backstay, claims: Claims, ledger: str) -> None:
    stage.act(f"Dev is stopped longer than its lease of {STALE_TTL:g} s, wakes, and writes")
    queue_up(stage, stay, "Dev", hold_and_oversleep, ledger, place=1)
    stale = stage.await_word("Dev", "holds")
    stage.send_signal("Dev", signal.SIGSTOP, "is stopped")
    stage.order("Eve", take_over_and_write, ledger)
    good = stage.await_word("Eve", "writes")
    stage.send_signal("Dev", signal.SIGCONT, "wakes up")
    stage.order("Dev", None)  # go on
    bad = stage.await_word("Dev", "writes")
    loss = stage.await_word("Dev", "hears of it")
    stage.await_word("Dev", "is done")

    db = sqlite3.connect(ledger)
    (text,) = db.execute("SELECT text FROM page").fetchone()
    db.close()
    claims.add(
        good.facts["accepted"] and not bad.facts["accepted"] and text == "written by the holder",
        f"the stale write with fence {stale.facts['fence']} was refused, the one with {good.facts['fence']} stands",
    )
    claims.add(bool(loss.facts["reason"]), f"and the stale holder's `with` raised LeaseLost: {loss.facts['reason']}")


# ── how it looks ──

#: State, colour and sign.
LOOKS = {
    "waits": ("yellow", "…"),
    "holds": ("bold green", "●"),
    "writes": ("bold green", "●"),
    "is killed": ("bold red", "✗"),
    "is stopped": ("magenta", "‖"),
    "hears of it": ("red", "!"),
}


def sentence(seen: Seen) -> str:
    facts = seen.facts
    if seen.what == "writes":
        return f"writes with fence {facts['fence']}: {'accepted' if facts['accepted'] else 'REFUSED'}"
    if seen.what == "hears of it":
        return f"gets LeaseLost: {facts['reason']}"
    return f"{seen.what}, fence {facts['fence']}" if "fence" in facts else seen.what


class Plain:
    """One line for each event: for logs, pipes and terminals without rich."""

    def __init__(self) -> None:
        self._started = time.monotonic()

    def act(self, title: str) -> None:
        print(f"\n{title}", flush=True)

    def event(self, seen: Seen, states: dict[str, tuple[str, str]]) -> None:
        if not seen.what.startswith("is ") or seen.what in LOOKS:
            print(f"  {seen.at - self._started:6.3f} s  {seen.who:<5} {sentence(seen)}", flush=True)

    def close(self) -> None:
        pass


class Rich:
    """A live table of the five, with the latest events below."""

    def __init__(self) -> None:
        from rich.live import Live

        self._started = time.monotonic()
        self._title = "Starting five processes"
        self._latest: list[str] = []
        self._live = Live(refresh_per_second=30)
        self._live.start()

    def act(self, title: str) -> None:
        self._title = title
        self._latest = []

    def event(self, seen: Seen, states: dict[str, tuple[str, str]]) -> None:
        from rich.console import Group
        from rich.table import Table

        if not seen.what.startswith("is ") or seen.what in LOOKS:
            self._latest = [*self._latest[-5:], f"{seen.at - self._started:6.3f} s  {seen.who:<5} {sentence(seen)}"]
        table = Table(title=self._title, title_justify="left", title_style="bold", min_width=72)
        for heading in ("process", "state", "fence"):
            table.add_column(heading, min_width=10)
        for name, (what, fence) in states.items():
            style, sign = LOOKS.get(what, ("dim", " "))
            idle = what in ("is ready", "is done", "lets go")
            table.add_row(name, f"{sign} {'idle' if idle else what}", "" if idle else fence, style=style)
        self._live.update(Group(table, *(f"[dim]{line}[/]" for line in self._latest)))

    def close(self) -> None:
        self._live.stop()


def screen() -> Screen:
    if sys.stdout.isatty():
        try:
            return Rich()
        except ImportError:
            pass
    return Plain()


def main() -> int:
    started = time.monotonic()
    claims = Claims()
    with tempfile.TemporaryDirectory() as folder:
        url = f"sqlite:///{folder}/backstay.db"
        ledger = str(Path(folder, "ledger.db"))
        db = sqlite3.connect(ledger)
        with db:
            db.execute("CREATE TABLE page (text TEXT, fence INTEGER)")
            db.execute("INSERT INTO page VALUES ('', 0)")
        db.close()

        view = screen()
        stage = Stage(view)
        try:
            with Backstay(url) as stay:
                stage.start(url)
                everybody_gets_a_turn(stage, stay, claims)
                a_holder_dies(stage, stay, claims)
                a_holder_oversleeps(stage, stay, claims, ledger)
        finally:
            view.close()
            stage.close()

    print("\nWhat was seen")
    for held, text in claims.rows:
        print(f"  {'ok  ' if held else 'FAIL'} {text}")
    print(f"  {time.monotonic() - started:.1f} s in all, {len(NAMES)} processes, one SQLite file")
    return 0 if all(held for held, _ in claims.rows) else 1


if __name__ == "__main__":
    sys.exit(main())
