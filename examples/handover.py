"""Five processes share one lock; one holder is killed, one is stopped past the end of its lease.

The example uses real operating system processes, a SQLite file in a temporary folder, kill -9 and SIGSTOP. It checks
its observations at the end; the exit code is 0 only if all checks pass.
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
#: Seconds: the duration of a turn, the lease of the holder that is killed, and of the holder that is stopped.
WORK, CRASH_TTL, STALE_TTL = 0.12, 1.5, 1.0
#: Seconds after which a wait counts as failed.
TIMEOUT = 20.0


# ── the workers: code as in your program ──


def take_turns(stay: Backstay, report: Callable[..., None], _: Connection, rounds: int) -> None:
    for _turn in range(rounds):
        with stay.lock("printer", ttl=10) as lease:
            report("holds", fence=lease.fence, since=lease.acquired_at)
            time.sleep(WORK)
            report("releases")


def hold_until_killed(stay: Backstay, report: Callable[..., None], _: Connection) -> None:
    with stay.lock("printer", ttl=CRASH_TTL) as lease:
        report("holds", fence=lease.fence, since=lease.acquired_at)
        time.sleep(TIMEOUT)


def hold_past_the_lease(stay: Backstay, report: Callable[..., None], pipe: Connection, ledger: str) -> None:
    try:
        with stay.lock("printer", ttl=STALE_TTL, renew=False) as lease:
            report("holds", fence=lease.fence, since=lease.acquired_at)
            pipe.recv()  # SIGSTOP arrives here, and SIGCONT long after the lease has ended
            accepted = guarded_write(ledger, "written by a late holder", lease.fence)
            report("writes", fence=lease.fence, accepted=accepted)
    except LeaseLost as loss:
        report("gets LeaseLost", reason=loss.reason)


def take_over_and_write(stay: Backstay, report: Callable[..., None], _: Connection, ledger: str) -> None:
    with stay.lock("printer", ttl=10) as lease:
        report("holds", fence=lease.fence, since=lease.acquired_at)
        accepted = guarded_write(ledger, "written by the holder", lease.fence)
        report("writes", fence=lease.fence, accepted=accepted)
        report("releases")


def guarded_write(ledger: str, text: str, fence: int) -> bool:
    """Write unless the row was written with a higher fence: the UPDATE compares and stores the fence atomically."""
    db = sqlite3.connect(ledger, timeout=10)
    try:
        with db:
            done = db.execute("UPDATE page SET text = ?, fence = ? WHERE fence <= ?", (text, fence, fence))
        return done.rowcount == 1
    finally:
        db.close()


TASKS = {task.__name__: task for task in (take_turns, hold_until_killed, hold_past_the_lease, take_over_and_write)}


def worker(url: str, pipe: Connection) -> None:
    """Run in a child process: execute the tasks that arrive on the pipe, and report events back."""

    def report(what: str, **facts: Any) -> None:
        pipe.send((time.monotonic(), what, facts))

    def report_queued(event: Event) -> None:
        if event.kind == "lock.queued":
            report("waits")

    with Backstay(url) as stay:
        stay.telemetry.subscribe(report_queued)
        report("is ready")
        while (command := pipe.recv()) is not None:
            task, *args = command
            TASKS[task](stay, report, pipe, *args)
            report("is done")


# ── the supervisor: starts the workers, sends them tasks, records their events ──


@dataclass
class Observation:
    """An event of one worker."""

    at: float
    who: str
    what: str
    facts: dict[str, Any]


class Display(Protocol):
    def start_phase(self, title: str) -> None: ...

    def event(self, seen: Observation, states: dict[str, tuple[str, str]]) -> None: ...

    def close(self) -> None: ...


@dataclass
class Supervisor:
    """Starts the five workers, sends them tasks, and records their events."""

    display: Display
    processes: dict[str, Any] = field(default_factory=dict)
    pipes: dict[str, Connection] = field(default_factory=dict)
    states: dict[str, tuple[str, str]] = field(default_factory=dict)
    seen: list[Observation] = field(default_factory=list)
    #: The index in `seen` at which the current phase begins.
    mark: int = 0

    def start(self, url: str) -> None:
        context = multiprocessing.get_context("spawn")
        for name in NAMES:
            ours, theirs = context.Pipe()
            process = context.Process(target=worker, args=(url, theirs), name=name, daemon=True)
            process.start()
            theirs.close()
            self.processes[name], self.pipes[name] = process, ours
            self.states[name] = ("starts", "")
        for name in NAMES:
            self.wait_for(name, "is ready")

    def start_phase(self, title: str) -> None:
        self.mark = len(self.seen)
        self.display.start_phase(title)

    def send(self, name: str, task: Callable[..., None] | None, *args: Any) -> None:
        self.pipes[name].send(None if task is None else (task.__name__, *args))

    def send_signal(self, name: str, number: signal.Signals, what: str) -> Observation:
        os.kill(self.processes[name].pid, number)
        return self.record(Observation(time.monotonic(), name, what, {}))

    def record(self, seen: Observation) -> Observation:
        """Store an observation and display it."""
        self.seen.append(seen)
        fence = str(seen.facts.get("fence", ""))
        self.states[seen.who] = (seen.what, fence)
        self.display.event(seen, self.states)
        return seen

    def observed(self, what: str, who: str = "") -> list[Observation]:
        """Return the observations of this phase, optionally of one worker."""
        return [seen for seen in self.seen[self.mark :] if seen.what == what and who in ("", seen.who)]

    def receive(self, seconds: float) -> None:
        """Wait up to `seconds` for events of the workers, and record them."""
        received: list[Observation] = []
        for pipe in wait(list(self.pipes.values()), timeout=seconds):
            name = next(name for name, known in self.pipes.items() if known is pipe)
            try:
                while self.pipes[name].poll():
                    at, what, facts = self.pipes[name].recv()
                    received.append(Observation(at, name, what, facts))
            except (EOFError, ConnectionError):  # the worker was killed
                del self.pipes[name]
        for seen in sorted(received, key=lambda seen: seen.at):
            self.record(seen)

    def wait_until(self, done: Callable[[], object], what: str) -> None:
        """Record events until `done()` is true."""
        deadline = time.monotonic() + TIMEOUT
        while not done():
            if time.monotonic() > deadline:
                raise SystemExit(f"timed out waiting for: {what}")
            self.receive(0.005)

    def wait_for(self, who: str, what: str) -> Observation:
        """Wait until `who` has reported `what` in this phase."""
        self.wait_until(lambda: self.observed(what, who), f"{who} {what}")
        return self.observed(what, who)[-1]

    def close(self) -> None:
        for name in self.pipes:
            self.send(name, None)
        for process in self.processes.values():
            process.join(timeout=5)
            process.kill()


# ── the three phases ──


@dataclass
class Checks:
    """The checks of the run, each with its result."""

    rows: list[tuple[bool, str]] = field(default_factory=list)

    def add(self, passed: bool, text: str) -> None:
        self.rows.append((passed, text))


def queue_up(
    supervisor: Supervisor, stay: Backstay, name: str, task: Callable[..., None], *args: Any, place: int
) -> None:
    """Send a task to one worker, and wait until it holds the lock or waits for it, as the `place`-th worker."""
    supervisor.send(name, task, *args)
    supervisor.wait_until(lambda: stay.locks.inspect("printer").count >= place, f"{name} to enter the queue")
    supervisor.wait_until(
        lambda: supervisor.observed("waits", name) or supervisor.observed("holds", name), f"{name} to report"
    )


def take_turns_in_order(supervisor: Supervisor, stay: Backstay, checks: Checks) -> None:
    supervisor.start_phase(f"Five processes queue for one lock, {ROUNDS} turns each")
    with stay.lock("printer"):  # held until all five workers wait
        for place, name in enumerate(NAMES, start=2):
            queue_up(supervisor, stay, name, take_turns, ROUNDS, place=place)
    for name in NAMES:
        supervisor.wait_for(name, "is done")

    queued, granted = supervisor.observed("waits"), supervisor.observed("holds")
    released = supervisor.observed("releases")
    checks.add(
        [seen.who for seen in queued] == [seen.who for seen in granted],
        f"first come, first served: {len(granted)} grants in arrival order",
    )
    fences = [seen.facts["fence"] for seen in granted]
    checks.add(fences == sorted(set(fences)), "every grant had a higher fence than the previous one")
    checks.add(
        all(after.at >= before.at for before, after in zip(released, granted[1:], strict=False)),
        "never two holders at the same time",
    )
    times = [(after.at - before.at) * 1000 for before, after in zip(released, granted[1:], strict=False)]
    p50, worst = statistics.median(times), max(times)
    checks.add(bool(times), f"handover between processes: p50 {p50:.1f} ms, worst {worst:.1f} ms of {len(times)}")


def kill_a_holder(supervisor: Supervisor, stay: Backstay, checks: Checks) -> None:
    supervisor.start_phase(f"Ada holds a lease of {CRASH_TTL:g} s, which is renewed, and is killed with kill -9")
    queue_up(supervisor, stay, "Ada", hold_until_killed, place=1)
    queue_up(supervisor, stay, "Bo", take_turns, 1, place=2)
    queue_up(supervisor, stay, "Cleo", take_turns, 1, place=3)
    dead = supervisor.wait_for("Ada", "holds")
    enough = dead.at + CRASH_TTL + 0.3  # long enough to see that the lease was renewed
    supervisor.wait_until(lambda: time.monotonic() > enough, "time")
    renewed = (
        not supervisor.observed("holds", "Bo") and stay.locks.inspect("printer").holders[0].fence == dead.facts["fence"]
    )
    checks.add(renewed, f"renewal kept the lease past its {CRASH_TTL:g} s while the holder was alive")

    killed = supervisor.send_signal("Ada", signal.SIGKILL, "is killed")
    ends = datetime.fromisoformat(stay.locks.inspect("printer").holders[0].expires_at)
    successor = supervisor.wait_for("Bo", "holds")
    supervisor.wait_for("Cleo", "is done")
    late = (successor.facts["since"] - ends).total_seconds()
    waited = successor.at - killed.at
    checks.add(
        0 <= late < 1 and [seen.who for seen in supervisor.observed("holds")] == ["Ada", "Bo", "Cleo"],
        f"kill -9: the next waiter got the lock {waited:.2f} s later, {late * 1000:.0f} ms after the lease had ended",
    )
    checks.add(
        successor.facts["fence"] > dead.facts["fence"], "the fence of the next holder is higher than the dead holder's"
    )


def stop_a_holder(supervisor: Supervisor, stay: Backstay, checks: Checks, ledger: str) -> None:
    supervisor.start_phase(f"Dev is stopped for longer than its lease of {STALE_TTL:g} s, resumes, and writes")
    queue_up(supervisor, stay, "Dev", hold_past_the_lease, ledger, place=1)
    stale = supervisor.wait_for("Dev", "holds")
    supervisor.send_signal("Dev", signal.SIGSTOP, "is stopped")
    supervisor.send("Eve", take_over_and_write, ledger)
    good = supervisor.wait_for("Eve", "writes")
    supervisor.send_signal("Dev", signal.SIGCONT, "resumes")
    supervisor.send("Dev", None)  # continue
    bad = supervisor.wait_for("Dev", "writes")
    loss = supervisor.wait_for("Dev", "gets LeaseLost")
    supervisor.wait_for("Dev", "is done")

    db = sqlite3.connect(ledger)
    (text,) = db.execute("SELECT text FROM page").fetchone()
    db.close()
    checks.add(
        good.facts["accepted"] and not bad.facts["accepted"] and text == "written by the holder",
        f"the stale write with fence {stale.facts['fence']} was rejected, the one with {good.facts['fence']} is stored",
    )
    checks.add(bool(loss.facts["reason"]), f"the stale holder's `with` raised LeaseLost: {loss.facts['reason']}")


# ── the display ──

#: The colour and sign of each event.
STYLES = {
    "waits": ("yellow", "…"),
    "holds": ("bold green", "●"),
    "writes": ("bold green", "●"),
    "is killed": ("bold red", "✗"),
    "is stopped": ("magenta", "‖"),
    "gets LeaseLost": ("red", "!"),
}


def describe(seen: Observation) -> str:
    facts = seen.facts
    if seen.what == "writes":
        return f"writes with fence {facts['fence']}: {'accepted' if facts['accepted'] else 'REJECTED'}"
    if seen.what == "gets LeaseLost":
        return f"gets LeaseLost: {facts['reason']}"
    return f"{seen.what}, fence {facts['fence']}" if "fence" in facts else seen.what


class Plain:
    """Prints one line per event: for logs, pipes and terminals without rich."""

    def __init__(self) -> None:
        self._started = time.monotonic()

    def start_phase(self, title: str) -> None:
        print(f"\n{title}", flush=True)

    def event(self, seen: Observation, states: dict[str, tuple[str, str]]) -> None:
        if not seen.what.startswith("is ") or seen.what in STYLES:
            print(f"  {seen.at - self._started:6.3f} s  {seen.who:<5} {describe(seen)}", flush=True)

    def close(self) -> None:
        pass


class Rich:
    """Shows a live table of the five workers, with the latest events below."""

    def __init__(self) -> None:
        from rich.live import Live

        self._started = time.monotonic()
        self._title = "Starting five processes"
        self._latest: list[str] = []
        self._live = Live(refresh_per_second=30)
        self._live.start()

    def start_phase(self, title: str) -> None:
        self._title = title
        self._latest = []

    def event(self, seen: Observation, states: dict[str, tuple[str, str]]) -> None:
        from rich.console import Group
        from rich.table import Table

        if not seen.what.startswith("is ") or seen.what in STYLES:
            self._latest = [*self._latest[-5:], f"{seen.at - self._started:6.3f} s  {seen.who:<5} {describe(seen)}"]
        table = Table(title=self._title, title_justify="left", title_style="bold", min_width=72)
        for heading in ("process", "state", "fence"):
            table.add_column(heading, min_width=10)
        for name, (what, fence) in states.items():
            style, sign = STYLES.get(what, ("dim", " "))
            idle = what in ("is ready", "is done", "releases")
            table.add_row(name, f"{sign} {'idle' if idle else what}", "" if idle else fence, style=style)
        self._live.update(Group(table, *(f"[dim]{line}[/]" for line in self._latest)))

    def close(self) -> None:
        self._live.stop()


def choose_display() -> Display:
    if sys.stdout.isatty():
        try:
            return Rich()
        except ImportError:
            pass
    return Plain()


def main() -> int:
    started = time.monotonic()
    checks = Checks()
    with tempfile.TemporaryDirectory() as folder:
        url = f"sqlite:///{folder}/backstay.db"
        ledger = str(Path(folder, "ledger.db"))
        db = sqlite3.connect(ledger)
        with db:
            db.execute("CREATE TABLE page (text TEXT, fence INTEGER)")
            db.execute("INSERT INTO page VALUES ('', 0)")
        db.close()

        view = choose_display()
        supervisor = Supervisor(view)
        try:
            with Backstay(url) as stay:
                supervisor.start(url)
                take_turns_in_order(supervisor, stay, checks)
                kill_a_holder(supervisor, stay, checks)
                stop_a_holder(supervisor, stay, checks, ledger)
        finally:
            view.close()
            supervisor.close()

    print("\nChecks")
    for passed, text in checks.rows:
        print(f"  {'ok  ' if passed else 'FAIL'} {text}")
    print(f"  {time.monotonic() - started:.1f} s in total, {len(NAMES)} processes, one SQLite file")
    return 0 if all(passed for passed, _ in checks.rows) else 1


if __name__ == "__main__":
    sys.exit(main())
