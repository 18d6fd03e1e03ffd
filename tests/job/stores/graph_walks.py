"""Random walks for property tests: a run with a random graph and random outcomes is executed on a job store and by
`workflow.graph.advance`. After every action the jobs must have the same states, and the run the same status.
"""

from __future__ import annotations

import itertools
from typing import Any

from hypothesis import strategies as st
from lockstep import LEASE, OOPS, Apply, Dice, shown

from backstay.job.exchange import Claim, Claimed, ExchangeCommand
from backstay.job.model import FINAL, Finish, NewJob
from backstay.job.run_model import NewRun
from backstay.workflow.graph import graph as pure

KINDS = ("complete",) * 5 + ("fail", "fail", "fail", "skip", "skip", "retry", "snooze", "release", "cancel")
WHENS = ("all_success", "all_success", "all_success", "all_done", "any_failure")
ACTIONS = ["claim"] * 6 + ["finish"] * 12 + ["rerun"] * 3 + ["trigger"] * 4 + ["cancel", "lapse"] + ["cancel_run"] * 2
#: Bytes that decide the graph, then bytes that decide each action.
walks = st.tuples(
    st.binary(min_size=60, max_size=60), st.lists(st.binary(min_size=16, max_size=16), min_size=5, max_size=40)
)


class Walk:
    """One run on a store and in the pure graph. `apply(now, verb, args, named)` sends a command to the store."""

    def __init__(self, apply: Apply, now: int, space: int) -> None:
        self._apply = apply
        self.now = now
        self._ids = (f"0-{space:08x}{nth:04x}" for nth in itertools.count())
        self._seq = itertools.count(1)
        self._run = next(self._ids)
        self._held: dict[str, Claimed] = {}
        #: The running jobs whose cancellation was requested.
        self._cancelled: set[str] = set()
        self._history: list[str] = []

    def play(self, plan: bytes, script: list[bytes]) -> None:
        dice = Dice(plan)
        jobs: list[NewJob] = []
        for _ in range(dice.pick(range(1, 9))):
            jobs.append(self._new(dice, [job.id for job in jobs]))
        self._store("start_run", NewRun(id=self._run, workflow="w", jobs=tuple(jobs)))
        self.graph = pure.Graph.of(jobs)
        self._compare("start")
        for data in script:
            self.now += 1
            dice = Dice(data)
            action = dice.pick(ACTIONS)
            getattr(self, f"_{action}")(dice)
            self._compare(action)

    def _new(self, dice: Dice, before: list[str], **fixed: Any) -> NewJob:
        fields: dict[str, Any] = {
            "after": tuple(dice.some(before, 3)),
            "when": dice.pick(WHENS),
            "soft": dice.pick((False, False, False, True)),
            "retries": dice.pick((0, 0, 1)),
            **fixed,
        }
        return NewJob(id=next(self._ids), type="work", run=self._run, **fields)

    # ── actions ──

    def _claim(self, dice: Dice) -> None:
        for job in self._exchange(want=dice.pick((1, 2, 3))).jobs:
            self._advance(pure.JobStarted(job.id))
            self._held[job.id] = job
            lost = {chain for chain, result in job.upstream.items() if result is None}
            self._assert_equal("the blockers without a result", lost, set(self.graph.jobs[job.id].uncompleted))

    def _finish(self, dice: Dice) -> None:
        if not self._held:
            self._claim(dice)
            return
        job = self._held.pop(dice.pick(sorted(self._held)))
        kind = dice.pick(KINDS)
        fields: dict[str, Any] = {"error": OOPS} if kind in ("fail", "retry") else {}
        event: pure.GraphEvent
        match kind:
            case "complete":
                others = [chain for chain in self.graph.tails if chain != job.chain]
                adds = [self._new(dice, others) for _ in range(dice.pick((0, 0, 0, 1, 2)))]
                following = None
                if dice.pick((0, 0, 0, 1)):
                    following = self._new(dice, [*[new.id for new in adds], *others], chain=job.chain)
                fields = {"result": b"r", "adds": tuple(adds), "next": following}
                event = pure.JobCompleted(job.id, _node(following), tuple(_node(new) for new in adds))
            case "fail":
                event = pure.JobFailed(job.id)
            case "skip":
                event = pure.JobSkipped(job.id)
            case "retry" if job.attempt > job.retries:
                event = pure.JobFailed(job.id)
            case "cancel":
                event = pure.JobCancelled(job.id)
            case _:
                event = pure.JobRequeued(job.id)
        if job.id in self._cancelled and kind != "complete":
            event = pure.JobCancelled(job.id)
        self._cancelled.discard(job.id)
        reply = self._exchange([Finish(job=job.id, fence=job.fence, kind=kind, **fields)])
        self._assert_equal("verdicts", reply.verdicts, ("ok",))
        self._advance(event)

    def _lapse(self, dice: Dice) -> None:
        """Let the leases of all running jobs expire."""
        self.now += LEASE
        self._store("reap", 0)
        held, self._held = self._held, {}
        for job in held.values():
            if job.id in self._cancelled:
                self._advance(pure.JobCancelled(job.id))
            else:
                self._advance(pure.JobFailed(job.id) if job.attempt > job.retries else pure.JobRequeued(job.id))
        self._cancelled.clear()

    def _cancel(self, dice: Dice) -> None:
        id_ = dice.pick(sorted(self.graph.jobs))
        if self._store("cancel", id_, "why not") == "running":
            self._cancelled.add(id_)
        else:
            self._advance(pure.JobCancelled(id_))

    def _cancel_run(self, dice: Dice) -> None:
        self._store("cancel_run", self._run, "why not")
        self._advance(pure.RunCancelled())

    def _trigger(self, dice: Dice) -> None:
        ended = [id_ for id_, state in sorted(self.graph.states.items()) if state in FINAL]
        if ended:
            id_ = dice.pick(ended)
            self._store("trigger", id_)
            self._advance(pure.JobRetried(id_))

    def _rerun(self, dice: Dice) -> None:
        self._store("rerun_failed", self._run)
        self._advance(pure.FailedRerun())

    # ── both implementations ──

    def _store(self, verb: str, *args: Any, **named: Any) -> Any:
        self._history.append(f"{verb} {', '.join(map(shown, args))}")
        return self._apply(self.now, verb, args, named)

    def _exchange(self, finishes: Any = (), want: int = 0) -> Any:
        return self._store(
            "exchange",
            ExchangeCommand(
                shard=0,
                worker="w",
                incarnation="i",
                channel=0,
                seq=next(self._seq),
                finishes=tuple(finishes),
                claim=Claim(want=want, lease=LEASE),
                not_after=self.now + LEASE,
            ),
        )

    def _advance(self, event: pure.GraphEvent) -> None:
        self._history.append(f"    {shown(event)}")
        self.graph.apply(pure.advance(self.graph, event))

    def _compare(self, action: str) -> None:
        jobs = self._apply(self.now, "list_jobs", (), {"run": self._run, "limit": 1000})
        self._assert_equal(f"the jobs after {action}", {job.id: job.state for job in jobs}, self.graph.states)
        run = self._apply(self.now, "get_run", (self._run,), {})
        self._assert_equal(f"the status after {action}", run.status, self.graph.status)

    def _assert_equal(self, what: str, found: Any, expected: Any) -> None:
        if found != expected:
            if isinstance(expected, dict):
                keys = [key for key in {**expected, **found} if expected.get(key) != found.get(key)]
                found, expected = ({key: side.get(key) for key in keys} for side in (found, expected))
            history = "\n".join(self._history)
            raise AssertionError(f"{what}: the store has {found}, the graph {expected}\nafter\n{history}")


def _node(new: NewJob | None) -> Any:
    return new and pure.JobNode(new.id, new.after, new.when, new.soft, new.chain)
