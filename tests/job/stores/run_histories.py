"""Random histories of workflow runs for property tests: small graphs, every outcome of a job, cancellations, retries
and reruns.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from typing import Any

import msgspec
from job_histories import JobLockstep
from lockstep import LEASE, OOPS, SECOND, Apply, Dice

from backstay.job.exchange import Claim
from backstay.job.model import AGEING, Finish, NewJob
from backstay.job.run_model import FINISHED, NewRun, RunEvent
from backstay.testing.waiting import eventually

QUEUES = (("q1",),)
KINDS = ("complete",) * 5 + ("fail", "fail", "skip", "skip", "retry", "snooze", "release", "cancel")
WHENS = ("all_success", "all_success", "all_done", "any_failure")
REASON = "why not"
#: The reasons that are the same in every store: those of the test and of the contract. For an expired lease each store
#: has its own text.
EQUAL_REASONS = ("", REASON, OOPS.message, *FINISHED)


class RunLockstep(JobLockstep):
    """Histories of runs and their jobs."""

    actions = (
        ["exchange"] * 14
        + ["start"] * 4
        + ["rerun"] * 4
        + ["cancel_run"] * 3
        + ["trigger"] * 3
        + ["cancel", "cancel", "enqueue", "join", "reap", "again", "prune", "purge", "check", "twice_run", "query"]
    )

    def __init__(self, apply: Apply, now: int, space: int) -> None:
        super().__init__(apply, now, space)
        self._runs: list[NewRun] = []
        #: The number of events of each run that have been compared.
        self._compared: Counter[str] = Counter()
        self._cursor = self._apply_to_store("events", 0, "$").cursor

    def _start(self, dice: Dice) -> None:
        run = next(self._ids)
        jobs: list[NewJob] = []
        for _ in range(dice.pick((3, 4, 5, 2, 6, 1, 0))):
            jobs.append(self._of_run(dice, run, [job.id for job in jobs]))
        new = NewRun(
            id=run,
            workflow=dice.pick(("w1", "w2")),
            doc=b"\x00doc",
            jobs=tuple(jobs),
            timeout=dice.pick((0, 0, 0, LEASE, 3 * LEASE)),
            keep=dice.pick((1000 * AGEING, 2 * LEASE)),
        )
        self._runs.append(new)
        self._both("start_run", new)

    def _of_run(self, dice: Dice, run: str, before: list[str]) -> NewJob:
        return self._new(dice, run=run, after=tuple(dice.some(before, 2)))

    def _new(self, dice: Dice, **fixed: Any) -> NewJob:
        chains = [new.id for new in self._known if not new.chain and self._is_whole(new.id)]
        fields: dict[str, Any] = {
            "queue": "q1",
            "delay": dice.pick((0, 0, 0, 0, SECOND)),
            "retries": dice.pick((0, 0, 1, 2)),
            "after": tuple(dice.some(chains, 2)),
            "when": dice.pick(WHENS),
            "soft": dice.pick((False, False, True)),
            "keep": dice.pick((1000 * AGEING, LEASE)),
        }
        new = NewJob(**{"id": next(self._ids), "type": dice.pick(("a", "b")), "args": b"\x00x", **fields, **fixed})
        self._known.append(new)
        return new

    def _enqueue(self, dice: Dice) -> None:
        self._both("enqueue", 0, [self._new(dice)])

    def _join(self, dice: Dice) -> None:
        """Enqueue a job of a run that has not finished."""
        unfinished = [run for run in self.model._runs.values() if not run.is_finished]
        if unfinished:
            run = dice.pick(unfinished)
            self._both("enqueue", 0, [self._of_run(dice, run.new.id, [row.chain for row in run.jobs])])

    def _finish(self, dice: Dice, row: Any) -> Finish:
        kind = dice.pick(KINDS)
        fence = row.fence if dice.pick((1, 1, 1, 1, 1, 0)) else 1
        fields: dict[str, Any] = {"delay": dice.pick((0, SECOND))} if kind in ("retry", "snooze") else {}
        if kind in ("retry", "fail"):
            fields["error"] = OOPS
        if kind == "complete":
            fields["result"] = dice.pick((b"r", b"", b"\x00\xff"))
            fields["outputs"] = dice.pick(({}, {"k": "v"}))
            if fence == row.fence and dice.pick((0, 0, 0, 1)):
                siblings = [job.chain for job in self.model._rows.values() if job.new.run == row.new.run][:4]
                siblings = [chain for chain in siblings if chain != row.chain and self._is_whole(chain)]
                adds = [self._new(dice, after=tuple(dice.some(siblings, 1))) for _ in range(dice.pick((0, 1, 2)))]
                fields["adds"] = tuple(adds)
                if dice.pick((0, 1)):
                    after = tuple(dice.some([*[new.id for new in adds], *siblings], 2))
                    fields["next"] = self._new(dice, chain=row.chain, after=after)
        return Finish(job=row.new.id, fence=fence, kind=kind, **fields)

    def _exchange(self, dice: Dice) -> None:
        running = [row for row in self.model._rows.values() if row.state == "running"]
        if any(row.until <= self.now for row in running):
            # The contract leaves open whether a finish under an expired, not yet reaped lease still counts.
            self._both("reap", 0)
        running = [row for row in running if row.until > self.now]
        finishes = tuple(self._finish(dice, row) for row in dice.some(running, 3))
        claim = Claim(want=dice.pick((3, 2, 1, 20, 0)), queues=QUEUES, lease=dice.pick((LEASE, LEASE, 3 * SECOND)))
        self._send(dice.pick(("w1", "w2")), finishes, claim)

    def _cancel_run(self, dice: Dice) -> None:
        if self._runs:
            self._both("cancel_run", dice.pick(self._runs).id, REASON)

    def _rerun(self, dice: Dice) -> None:
        finished = [run.new for run in self.model._runs.values() if run.is_finished]
        if known := finished or self._runs:
            self._both("rerun_failed", dice.pick(known).id)

    def _check(self, dice: Dice) -> None:
        self._both("check_runs", 0)

    def _twice_run(self, dice: Dice) -> None:
        if known := [run for run in self._runs if run.id in self.model._runs]:
            self._both("start_run", dice.pick(known))

    def _prune(self, dice: Dice) -> None:
        # Each store counts the records of a deleted run in its own way.
        self._both("prune", 0, 1000, lenient=True)

    def _query(self, dice: Dice) -> None:
        status = dice.pick((None, "queued", "running", *FINISHED))
        self._both("list_runs", workflow=dice.pick(("", "w1")), status=status, limit=dice.pick((50, 2)))
        for new in self._known[-5:]:
            self._both("get_outputs", new.id)

    # ── comparison ──

    def _apply_to_store(self, verb: str, *args: Any, **named: Any) -> Any:
        return self._apply(self.now, verb, args, named)

    def _comparable(self, reply: Any, *, translate: bool = False) -> Any:
        if isinstance(reply, list) and reply and hasattr(reply[0], "workflow"):
            return [self._comparable_run(run) for run in reply]
        if hasattr(reply, "workflow"):
            return self._comparable_run(reply)
        return super()._comparable(reply, translate=translate)

    def _comparable_run(self, run: Any) -> dict[str, Any]:
        fields = msgspec.structs.asdict(run)
        fields["reason"] = bool(run.reason)
        return fields

    def _compare(self) -> None:
        super()._compare()
        read: defaultdict[str, list[RunEvent]] = defaultdict(list)
        self._read_events(read)
        for id_, run in self.model._runs.items():
            self._assert_equal(self._comparable(self._apply_to_store("get_run", id_)), self._comparable(run.view()))
            first = self._compared[id_]
            events = self._apply_to_store("run_events", id_, first)
            self._assert_equal(_comparable_events(events, first), _comparable_events(run.events[first:], first))
            self._await_events(read, id_, len(events))
            self._assert_equal(read.pop(id_, []), events)
            self._compared[id_] = len(run.events)
        for id_, events in read.items():
            raise AssertionError(f"the store has events of the unknown run {id_}: {events}")

    def _read_events(self, read: defaultdict[str, list[RunEvent]]) -> None:
        """Add the new events of all runs to `read`, by run."""
        while (page := self._apply_to_store("events", 0, self._cursor, 50)).events:
            self._cursor = page.cursor
            for event in page.events:
                read[event.run].append(event)

    def _await_events(self, read: defaultdict[str, list[RunEvent]], run: str, count: int) -> None:
        """Read until a run has `count` new events. PostgreSQL holds events back while an older transaction is open,
        which may be one of the server itself.
        """

        def all_read() -> bool:
            if len(read[run]) < count:
                self._read_events(read)
            return len(read[run]) >= count

        eventually(all_read)


def _comparable_events(events: list[RunEvent], first: int) -> dict[str, Any]:
    """Return the parts of new events that must be equal: their numbers, the events of the run itself, and the events of
    each job in order. The order among jobs is up to each store.
    """
    by_job: defaultdict[str, list[Any]] = defaultdict(list)
    lapsed = {event.job for event in events if event.kind == "lease_expired"}
    for event in events:
        why = event.why if event.why in EQUAL_REASONS and event.job not in lapsed else "some"
        by_job[event.job].append((event.kind, event.at, event.attempt, event.worker, why))
    kinds = [event.kind for event in events]
    return {
        "seqs": [event.seq - first for event in events],
        "jobs": dict(by_job),
        "first": kinds[0] if kinds and kinds[0].startswith("run_") else "",
        "last": kinds[-1] if kinds and kinds[-1].startswith("run_") else "",
    }
