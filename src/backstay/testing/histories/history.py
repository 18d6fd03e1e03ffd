"""Histories of lock races: each process records its events, and the checker verifies the events of all processes.

Each process appends JSON lines to its own file, so the events of a killed process are not lost. Times are seconds of
the monotonic clock (`steady()`), which all processes of a host share; engine times are µs of the engine's clock.

    asked      the caller is about to acquire
    granted    it has acquired, with this fence and local deadline
    refused    the acquire failed: timeout, engine error, cancellation
    leaving    the holder is about to release, with its current deadline
    released   the engine confirmed the release
    unheard    the release got no reply
    not_owner  the engine refused the release: the caller no longer had the lock
    overlap    another holder wrote while this lease was valid
    stray      another violation, described in words
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
from backstay.testing.histories.order import RecordedGrant, Snapshot, StateLoss, find_violations

SUFFIX = ".history"


class HistoryEvent(NamedTuple):
    """One line of a history. `id` is the lock_id of the acquire attempt, unique in the whole history."""

    kind: str
    name: str
    id: str
    t: float
    facts: Mapping[str, Any]


class Amnesia(NamedTuple):
    """A moment when the engine may have lost acknowledged writes. `t`: the moment on the monotonic clock, as in events.
    `at`: the moment on the engine's clock. `names`: the locks on the Cluster node that lost writes; None: all locks.
    """

    t: float
    at: Micros
    names: frozenset[str] | None = None

    def concerns(self, name: str) -> bool:
        return self.names is None or name in self.names


class HistoryWriter:
    """Writes the events of one process. Each event is one `write` to a file that is open for appending, so a kill
    cannot lose an earlier event.
    """

    def __init__(self, folder: Path, process: str) -> None:
        self.process = process
        self._fd = os.open(folder / (process + SUFFIX), os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)

    def note(self, kind: str, name: str, ticket: str, **facts: Any) -> None:
        line = json.dumps([kind, name, ticket, steady(), facts])
        os.write(self._fd, line.encode() + b"\n")

    def close(self) -> None:
        os.close(self._fd)


def read(folder: Path) -> list[HistoryEvent]:
    """Return the events of all processes, in order of time. A last line that a kill has truncated is left out."""
    events: list[HistoryEvent] = []
    for file in sorted(folder.glob("*" + SUFFIX)):
        lines = file.read_text().split("\n")
        events += [HistoryEvent(*json.loads(line)) for line in lines[:-1]]
    return sorted(events, key=lambda event: event.t)


@dataclass(slots=True)
class Hold:
    """A grant, and the time from `start` to `end` in which its holder certainly had the lock."""

    name: str
    id: str
    fence: int
    #: When the caller sent the first request of this acquire. If a reply is lost, the request is sent again, but the
    #: grant may already have been made for the first one.
    asked: float
    #: When the caller received the grant.
    start: float
    end: float
    #: The engine's time of the grant.
    at: Micros


@dataclass(slots=True)
class HistoryReport:
    """The result of checking a history. If `violations` is empty, every guarantee was kept."""

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
    events: Iterable[HistoryEvent],
    snapshots: Iterable[Snapshot] = (),
    *,
    permits: Mapping[str, int] | None = None,
    amnesia: Iterable[Amnesia] = (),
    ttl: float = 0.0,
) -> HistoryReport:
    """Check a history against the guarantees of locks.

    events: the recorded events of all processes.
    snapshots: states of the locks that an observer read; they are needed to check the queue order.
    permits: the largest number of concurrent holders, by lock name; 1 for other names.
    amnesia: the moments when the engine may have lost writes (a restart without persistence, a failover to a lagging
        replica). Leases and queue positions from before such a moment may be lost, but fences must still increase.
    ttl: the shortest lease in seconds. Without it, fewer violations of the queue order can be proven.
    """
    report = HistoryReport()
    forgot = sorted(amnesia, key=lambda moment: moment.t)
    events = list(events)
    holds = _holds(events, forgot, report)
    released = {event.id: event.t for event in events if event.kind == "released"}
    by_name: dict[str, list[Hold]] = defaultdict(list)
    for hold in holds:
        by_name[hold.name].append(hold)
    for name, mine in by_name.items():
        _check_exclusion(name, mine, (permits or {}).get(name, 1), report)
        _check_fences(name, mine, report)
    views: dict[str, list[Snapshot]] = defaultdict(list)
    for snapshot in snapshots:
        views[snapshot.name].append(snapshot)
    for name, seen in views.items():
        grants = [RecordedGrant(hold.id, hold.at, hold.asked) for hold in by_name[name]]
        losses = [StateLoss(moment.t, moment.at) for moment in forgot if moment.concerns(name)]
        wrong = find_violations(seen, grants, (permits or {}).get(name, 1), losses, round(ttl * 1_000_000))
        report.violations += [f"{name}: {found}" for found in wrong]
        report.queued = max(report.queued, *(len(look.queue) for look in seen))
        _check_stays_released(name, seen, {h.id: h.asked for h in by_name[name]}, released, forgot, report)
    return report


def _holds(events: list[HistoryEvent], forgot: list[Amnesia], report: HistoryReport) -> list[Hold]:
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
                    report.violations.append(f"{name}: {who} released in time and got NotOwner")
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


def _check_exclusion(name: str, holds: list[Hold], permits: int, report: HistoryReport) -> None:
    """Check that a name never has more live holders than permits."""
    live: list[Hold] = []
    for hold in sorted(holds, key=lambda h: h.start):
        live = [other for other in live if other.end > hold.start]
        if hold.end <= hold.start:
            continue  # the lease had expired before the caller received the grant
        live.append(hold)
        if len(live) > permits:
            who = " and ".join(f"{h.id} (fence {h.fence}, {h.start:.4f} to {h.end:.4f})" for h in live)
            report.violations.append(f"{name}: {len(live)} live holders at once, {permits} allowed: {who}")


def _check_fences(name: str, holds: list[Hold], report: HistoryReport) -> None:
    """Check that fences are unique and increase, both with the engine's time of the grants and with the caller's time:
    a grant that was received before another one was requested has the smaller fence.
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


def _check_stays_released(
    name: str,
    snapshots: list[Snapshot],
    asked: dict[str, float],
    released: dict[str, float],
    forgot: list[Amnesia],
    report: HistoryReport,
) -> None:
    """Check that the id of an acquire attempt whose lock was released does not appear again as holder or waiter: a
    delayed copy of the attempt's request must not take effect.
    """
    found: set[str] = set()
    for snapshot in snapshots:
        for who in (*snapshot.holders, *(w.id for w in snapshot.queue)):
            if snapshot.t > released.get(who, snapshot.t) and who not in found:
                found.add(who)
                if not any(asked.get(who, 0.0) <= m.t <= snapshot.t and m.concerns(name) for m in forgot):
                    report.violations.append(f"{name}: {who} had released and came back")
