"""Random histories of workflow runs for property tests: small graphs, all ways to end, people who change their minds.
Played on the model and on a real store at once, as in `job_scripts`.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from typing import Any

import msgspec
from job_histories import LEASE, OOPS, SECOND, Dice, Lockstep

from backstay.job.model import AGEING, Claim, Finish, NewJob
from backstay.job.run_model import FINISHED, NewRun, RunEvent
from backstay.testing.waiting import eventually

QUEUES = (("q1",),)
KINDS = ("complete",) * 5 + ("fail", "fail", "skip", "skip", "retry", "snooze", "release", "cancel")
WHENS = ("all_success", "all_success", "all_done", "any_failure")
#: How often each happens.
RUN_DEEDS = (
    ["exchange"] * 14
    + ["start"] * 4
    + ["rerun"] * 4
    + ["cancel_run"] * 3
    + ["trigger"] * 3
    + ["cancel", "cancel", "enqueue", "join", "reap", "again", "prune", "purge", "check", "twice_run", "look"]
)
WHY_NOT = "why not"
#: Reasons set by the script or by the contract. For lost or late workers each store has its own text.
KNOWN_WORDS = ("", WHY_NOT, OOPS.message, *FINISHED)


class RunLockstep(Lockstep):
    """One history of runs on both sides."""

    deeds = RUN_DEEDS

    def __init__(self, other: Any, now: int, space: int) -> None:
        super().__init__(other, now, space)
        self._runs: list[NewRun] = []
        self._compared: Counter[str] = Counter()
        self._cursor = self._ask_other("events", 0, "$").cursor

    # ── what happens ──

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
        """A job is added from outside to a run that goes on."""
        going = [run for run in self.model._runs.values() if not run.is_finished]
        if going:
            run = dice.pick(going)
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
            # Whether a finish under an expired lease that was not reaped still counts is up to the store.
            self._both("reap", 0)
        running = [row for row in running if row.until > self.now]
        finishes = tuple(self._finish(dice, row) for row in dice.some(running, 3))
        claim = Claim(want=dice.pick((3, 2, 1, 20, 0)), queues=QUEUES, lease=dice.pick((LEASE, LEASE, 3 * SECOND)))
        self._send(dice.pick(("w1", "w2")), finishes, claim)

    def _cancel_run(self, dice: Dice) -> None:
        if self._runs:
            self._both("cancel_run", dice.pick(self._runs).id, WHY_NOT)

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
        # How a run counts among what was deleted is the store's affair.
        self._both("prune", 0, 1000, lenient=True)

    def _look(self, dice: Dice) -> None:
        status = dice.pick((None, "queued", "running", *FINISHED))
        self._both("list_runs", workflow=dice.pick(("", "w1")), status=status, limit=dice.pick((50, 2)))
        for new in self._known[-5:]:
            self._both("get_outputs", new.id)

    # ── both sides ──

    def _ask_other(self, verb: str, *args: Any, **named: Any) -> Any:
        return self.other(self.now, verb, args, named)

    def _plain(self, answer: Any, *, translate: bool = False) -> Any:
        if isinstance(answer, list) and answer and hasattr(answer[0], "workflow"):
            return [self._plain_run(run) for run in answer]
        return self._plain_run(answer) if hasattr(answer, "workflow") else super()._plain(answer, translate=translate)

    def _plain_run(self, run: Any) -> dict[str, Any]:
        fields = msgspec.structs.asdict(run)
        fields["reason"] = bool(run.reason)
        return fields

    def _compare(self) -> None:
        super()._compare()
        told: defaultdict[str, list[RunEvent]] = defaultdict(list)
        self._listen(told)
        for id_, run in self.model._runs.items():
            self._demand(self._plain(self._ask_other("get_run", id_)), self._plain(run.view()))
            first = self._compared[id_]
            theirs = self._ask_other("run_events", id_, first)
            self._demand(_story(theirs, first), _story(run.events[first:], first))
            self._hear(told, id_, len(theirs))
            self._demand(told.pop(id_, []), theirs)
            self._compared[id_] = len(run.events)
        for id_, events in told.items():  # it was begun, ended and pruned between two looks: not in this test
            raise AssertionError(f"{id_} is nobody's, and told {events}")

    def _listen(self, told: defaultdict[str, list[RunEvent]]) -> None:
        """The events of all runs, by run."""
        while (page := self._ask_other("events", 0, self._cursor, 50)).events:
            self._cursor = page.cursor
            for event in page.events:
                told[event.run].append(event)

    def _hear(self, told: defaultdict[str, list[RunEvent]], run: str, count: int) -> None:
        """A store may hold events back while another transaction is under way, which may be the server's own."""

        def all_told() -> bool:
            if len(told[run]) < count:
                self._listen(told)
            return len(told[run]) >= count

        eventually(all_told)


def _story(events: list[RunEvent], first: int) -> dict[str, Any]:
    """What must be equal of new events: their numbers, the run's events, and each job's events in order. Which job
    comes first is up to each store.
    """
    by_job: defaultdict[str, list[Any]] = defaultdict(list)
    lapsed = {event.job for event in events if event.kind == "lease_expired"}
    for event in events:
        why = event.why if event.why in KNOWN_WORDS and event.job not in lapsed else "some"
        by_job[event.job].append((event.kind, event.at, event.attempt, event.worker, why))
    kinds = [event.kind for event in events]
    return {
        "seqs": [event.seq - first for event in events],
        "jobs": dict(by_job),
        "first": kinds[0] if kinds and kinds[0].startswith("run_") else "",
        "last": kinds[-1] if kinds and kinds[-1].startswith("run_") else "",
    }
