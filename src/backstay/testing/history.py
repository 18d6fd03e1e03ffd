"""Histories: what every contender of a race says it did, and what must be true of all of it together.

Each process appends JSON lines to a file of its own, so that a killed one leaves behind all it had said. Times are
seconds of `steady()`, which all processes of a host share; engine times are µs of the engine's clock.

    asked      before the acquire                    granted   after it, with fence and local deadline
    refused    it failed: timeout, engine, cancel    leaving   before the release, with the deadline by then
    released   the engine took it back               overlap   somebody else wrote while the lease was live
    unheard    nobody heard the release              stray     anything that must never happen, in words
"""

from __future__ import annotations

import json
import os
from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

from backstay.engine.base import Micros, steady
from backstay.testing.order import Grant, Loss, Snapshot, out_of_order

SUFFIX = ".history"


class Event(NamedTuple):
    """One line. `id` is the attempt's lock_id, unique in the whole history."""

    kind: str
    name: str
    id: str
    t: float
    facts: Mapping[str, Any]


class Amnesia(NamedTuple):
    """When an engine may have forgotten what it had answered: our time, and its own. A part of a Cluster forgets only
    the names that it served; None: all.
    """

    t: float
    at: Micros
    names: frozenset[str] | None = None

    def concerns(self, name: str) -> bool:
        return self.names is None or name in self.names


class Diary:
    """Where one process writes its events. A line is one write to a file opened for appending."""

    def __init__(self, folder: Path, process: str) -> None:
        self.process = process
        self._fd = os.open(folder / (process + SUFFIX), os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)

    def note(self, kind: str, name: str, ticket: str, **facts: Any) -> None:
        line = json.dumps([kind, name, ticket, steady(), facts])
        os.write(self._fd, line.encode() + b"\n")

    def close(self) -> None:
        os.close(self._fd)


def read(folder: Path) -> list[Event]:
    """All events of all processes, in the order of their times. A line cut short by a kill is left out."""
    events: list[Event] = []
    for file in sorted(folder.glob("*" + SUFFIX)):
        lines = file.read_text().split("\n")
        events += [Event(*json.loads(line)) for line in lines[:-1]]
    return sorted(events, key=lambda event: event.t)


@dataclass(slots=True)
class Hold:
    """A grant, and for how long it certainly stood."""

    name: str
    id: str
    fence: int
    #: It was first asked for at `asked` (a resend's grant may be older than the resend), and known at `start`.
    asked: float
    start: float
    end: float
    #: When the engine granted it.
    at: Micros


@dataclass(slots=True)
class Report:
    """What a history amounts to. No violations: every claim held."""

    violations: list[str] = field(default_factory=list[str])
    asked: int = 0
    grants: int = 0
    refused: int = 0
    lost: int = 0
    longest_wait: float = 0.0
    queued: int = 0

    def __str__(self) -> str:
        return (
            f"asked {self.asked}, granted {self.grants}, refused {self.refused}, lost {self.lost},"
            f" longest queue {self.queued}, longest wait {self.longest_wait:.2f} s,"
            f" violations {len(self.violations)}"
        )


def check(
    events: Iterable[Event],
    snapshots: Iterable[Snapshot] = (),
    *,
    permits: Mapping[str, int] | None = None,
    amnesia: Iterable[Amnesia] = (),
    ttl: float = 0.0,
) -> Report:
    """Hold a history against what locks promise.

    permits: how many may hold a name at once, 1 unless said. amnesia: when the engine forgot (a restart without
    persistence, a failover to a replica that was behind); what was held before is excused from exclusion, ranks from
    before may be lost, but fences never fail to grow. ttl: of the shortest lease; without it less can be proven.
    """
    report = Report()
    forgot = sorted(amnesia, key=lambda moment: moment.t)
    events = list(events)
    holds = _holds(events, forgot, report)
    released = {event.id: event.t for event in events if event.kind == "released"}
    by_name: dict[str, list[Hold]] = defaultdict(list)
    for hold in holds:
        by_name[hold.name].append(hold)
    for name, mine in by_name.items():
        _exclusion(name, mine, (permits or {}).get(name, 1), report)
        _fences(name, mine, report)
    views: dict[str, list[Snapshot]] = defaultdict(list)
    for snapshot in snapshots:
        views[snapshot.name].append(snapshot)
    for name, seen in views.items():
        grants = [Grant(hold.id, hold.at, hold.asked) for hold in by_name[name]]
        losses = [Loss(moment.t, moment.at) for moment in forgot if moment.concerns(name)]
        wrong = out_of_order(seen, grants, (permits or {}).get(name, 1), losses, round(ttl * 1_000_000))
        report.violations += [f"{name}: {found}" for found in wrong]
        report.queued = max(report.queued, *(len(look.queue) for look in seen))
        _ghosts(name, seen, {h.id: h.asked for h in by_name[name]}, released, forgot, report)
    return report


def _holds(events: list[Event], forgot: list[Amnesia], report: Report) -> list[Hold]:
    holds: dict[str, Hold] = {}
    asked: dict[str, float] = {}
    for kind, name, who, t, facts in events:
        match kind:
            case "asked":
                report.asked += 1
                asked[who] = t
            case "granted":
                report.grants += 1
                report.longest_wait = max(report.longest_wait, t - asked.get(who, t))
                if who in holds:
                    report.violations.append(f"{name}: attempt {who} was granted twice")
                began: float = asked[who] if who in asked else facts["sent"]
                holds[who] = Hold(name, who, facts["fence"], began, t, facts["deadline"], facts["at"])
            case "refused":
                report.refused += 1
                report.longest_wait = max(report.longest_wait, t - asked.get(who, t))
            case "leaving":
                hold = holds[who]
                hold.end = min(t, facts["deadline"])
                if facts["lost"]:
                    report.lost += 1
                    if facts["deadline"] > t and not _excused(hold, t, forgot):
                        report.violations.append(
                            f"{name}: {who} lost its lease {facts['deadline'] - t:.3f} s early: {facts['lost']}"
                        )
            case "not_owner":
                hold = holds[who]
                if facts["deadline"] > t and not _excused(hold, t, forgot):
                    report.violations.append(f"{name}: {who} released in time and was told that it is not the owner")
            case "overlap":
                if who not in holds or not _excused(holds[who], t, forgot):
                    report.violations.append(f"{name}: {who}: {facts['what']}")
            case "stray":
                report.violations.append(f"{name}: {who}: {facts['what']}")
            case _:
                pass
    for hold in holds.values():
        for moment in forgot:
            if hold.at <= moment.at and moment.concerns(hold.name):
                hold.end = min(hold.end, moment.t)
    return list(holds.values())


def _excused(hold: Hold, t: float, forgot: list[Amnesia]) -> bool:
    return any(hold.at <= moment.at and moment.t <= t and moment.concerns(hold.name) for moment in forgot)


def _exclusion(name: str, holds: list[Hold], permits: int, report: Report) -> None:
    """Never more live holders than permits."""
    live: list[Hold] = []
    for hold in sorted(holds, key=lambda h: h.start):
        live = [other for other in live if other.end > hold.start]
        if hold.end <= hold.start:
            continue  # the grant came too late to be of any use: it never lived
        live.append(hold)
        if len(live) > permits:
            who = " and ".join(f"{h.id} (fence {h.fence}, {h.start:.4f} to {h.end:.4f})" for h in live)
            report.violations.append(f"{name}: {len(live)} live holders at once, {permits} allowed: {who}")


def _fences(name: str, holds: list[Hold], report: Report) -> None:
    """Fences grow with the engine's time, and with ours: a grant known before another was asked for bears the
    smaller one. No fence is given twice.
    """
    latest = Hold(name, "", 0, float("-inf"), 0.0, 0.0, 0)
    last = at = 0
    for hold in sorted(holds, key=lambda h: (h.fence, h.start)):
        if hold.fence == last:
            report.violations.append(f"{name}: fence {hold.fence} was given twice, the second time to {hold.id}")
        last = hold.fence
        if hold.at < at:
            report.violations.append(
                f"{name}: {hold.id} bears fence {hold.fence}, but was granted before a smaller one"
            )
        at = max(at, hold.at)
        if hold.start < latest.asked:
            report.violations.append(
                f"{name}: {hold.id} was granted before {latest.id} had asked, and yet its fence is greater"
                f" ({hold.fence} > {latest.fence})"
            )
        if hold.asked > latest.asked:
            latest = hold


def _ghosts(
    name: str,
    snapshots: list[Snapshot],
    asked: dict[str, float],
    released: dict[str, float],
    forgot: list[Amnesia],
    report: Report,
) -> None:
    """Whoever has released is gone for good: a late copy of its request brings nothing back."""
    found: set[str] = set()
    for snapshot in snapshots:
        for who in (*snapshot.holders, *(w.id for w in snapshot.queue)):
            if snapshot.t > released.get(who, snapshot.t) and who not in found:
                found.add(who)
                if not any(asked.get(who, 0.0) <= m.t <= snapshot.t and m.concerns(name) for m in forgot):
                    report.violations.append(f"{name}: {who} had released and came back")
