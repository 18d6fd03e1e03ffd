"""Random graphs with random outcomes, walked on a store and by `workflow.graph.advance` at once: after every step the
jobs are in the same states, and the run has the same status.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

from hypothesis import strategies as st
from job_histories import LEASE, OOPS, Dice, shown

from backstay.job.model import FINAL, Claim, Claimed, ExchangeCommand, Finish, NewJob
from backstay.job.run_model import NewRun
from backstay.workflow.graph import graph as pure

KINDS = ("complete",) * 5 + ("fail", "fail", "fail", "skip", "skip", "retry", "snooze", "release", "cancel")
WHENS = ("all_success", "all_success", "all_success", "all_done", "any_failure")
DEEDS = ["claim"] * 6 + ["finish"] * 12 + ["rerun"] * 3 + ["trigger"] * 4 + ["cancel"] + ["cancel_run"] * 2 + ["lapse"]
#: Bytes for the graph, then for each deed.
walks = st.tuples(
    st.binary(min_size=60, max_size=60), st.lists(st.binary(min_size=16, max_size=16), min_size=5, max_size=40)
)

Ask = Callable[[int, str, tuple[Any, ...], dict[str, Any]], Any]


class Walk:
    """One run on both sides."""

    def __init__(self, ask: Ask, now: int, space: int) -> None:
        self._ask = ask
        self.now = now
        self._ids = (f"0-{space:08x}{nth:04x}" for nth in itertools.count())
        self._seq = itertools.count(1)
        self._run = next(self._ids)
        self._held: dict[str, Claimed] = {}
        #: Running jobs with a requested cancellation.
        self._unwanted: set[str] = set()
        self._told: list[str] = []

    def play(self, plan: bytes, script: list[bytes]) -> None:
        dice = Dice(plan)
        jobs: list[NewJob] = []
        for _ in range(dice.pick(range(1, 9))):
            jobs.append(self._new(dice, [job.id for job in jobs]))
        self._store("start_run", NewRun(id=self._run, workflow="w", jobs=tuple(jobs)))
        self.graph = pure.Graph.of(jobs)
        self._compare("start")
        for thrown in script:
            self.now += 1
            dice = Dice(thrown)
            deed = dice.pick(DEEDS)
            getattr(self, f"_{deed}")(dice)
            self._compare(deed)

    def _new(self, dice: Dice, before: list[str], **fixed: Any) -> NewJob:
        fields: dict[str, Any] = {
            "after": tuple(dice.some(before, 3)),
            "when": dice.pick(WHENS),
            "soft": dice.pick((False, False, False, True)),
            "retries": dice.pick((0, 0, 1)),
            **fixed,
        }
        return NewJob(id=next(self._ids), type="work", run=self._run, **fields)

    # ── what happens ──

    def _claim(self, dice: Dice) -> None:
        for job in self._exchange(want=dice.pick((1, 2, 3))).jobs:
            self._advance(pure.Started(job.id))
            self._held[job.id] = job
            lost = {chain for chain, result in job.upstream.items() if result is None}
            self._demand("what its blockers came to", lost, set(self.graph.jobs[job.id].uncompleted))

    def _finish(self, dice: Dice) -> None:
        if not self._held:
            self._claim(dice)
            return
        job = self._held.pop(dice.pick(sorted(self._held)))
        kind = dice.pick(KINDS)
        fields: dict[str, Any] = {"error": OOPS} if kind in ("fail", "retry") else {}
        event: pure.Event
        match kind:
            case "complete":
                others = [chain for chain in self.graph.tails if chain != job.chain]
                adds = [self._new(dice, others) for _ in range(dice.pick((0, 0, 0, 1, 2)))]
                following = None
                if dice.pick((0, 0, 0, 1)):
                    following = self._new(dice, [*[new.id for new in adds], *others], chain=job.chain)
                fields = {"result": b"r", "adds": tuple(adds), "next": following}
                event = pure.Completed(job.id, _node(following), tuple(_node(new) for new in adds))
            case "fail":
                event = pure.Failed(job.id)
            case "skip":
                event = pure.Skipped(job.id)
            case "retry" if job.attempt > job.retries:
                event = pure.Failed(job.id)
            case "cancel":
                event = pure.Cancelled(job.id)
            case _:
                event = pure.Requeued(job.id)
        if job.id in self._unwanted and kind != "complete":
            event = pure.Cancelled(job.id)
        self._unwanted.discard(job.id)
        reply = self._exchange([Finish(job=job.id, fence=job.fence, kind=kind, **fields)])
        self._demand("verdicts", reply.verdicts, ("ok",))
        self._advance(event)

    def _lapse(self, dice: Dice) -> None:
        """All who hold something go silent."""
        self.now += LEASE
        self._store("reap", 0)
        held, self._held = self._held, {}
        for job in held.values():
            if job.id in self._unwanted:
                self._advance(pure.Cancelled(job.id))
            else:
                self._advance(pure.Failed(job.id) if job.attempt > job.retries else pure.Requeued(job.id))
        self._unwanted.clear()

    def _cancel(self, dice: Dice) -> None:
        id_ = dice.pick(sorted(self.graph.jobs))
        if self._store("cancel", id_, "why not") == "running":
            self._unwanted.add(id_)
        else:
            self._advance(pure.Cancelled(id_))

    def _cancel_run(self, dice: Dice) -> None:
        self._store("cancel_run", self._run, "why not")
        self._advance(pure.RunCancelled())

    def _trigger(self, dice: Dice) -> None:
        ended = [id_ for id_, state in sorted(self.graph.states.items()) if state in FINAL]
        if ended:
            id_ = dice.pick(ended)
            self._store("trigger", id_)
            self._advance(pure.Retried(id_))

    def _rerun(self, dice: Dice) -> None:
        self._store("rerun_failed", self._run)
        self._advance(pure.FailedRerun())

    # ── both sides ──

    def _store(self, verb: str, *args: Any, **named: Any) -> Any:
        self._told.append(f"{verb} {', '.join(map(shown, args))}")
        return self._ask(self.now, verb, args, named)

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

    def _advance(self, event: pure.Event) -> None:
        self._told.append(f"    {shown(event)}")
        self.graph.apply(pure.advance(self.graph, event))

    def _compare(self, deed: str) -> None:
        jobs = self._ask(self.now, "list_jobs", (), {"run": self._run, "limit": 1000})
        self._demand(f"the jobs after {deed}", {job.id: job.state for job in jobs}, self.graph.states)
        run = self._ask(self.now, "get_run", (self._run,), {})
        self._demand(f"the status after {deed}", run.status, self.graph.status)

    def _demand(self, what: str, theirs: Any, ours: Any) -> None:
        if theirs != ours:
            if isinstance(ours, dict):
                keys = [key for key in {**ours, **theirs} if ours.get(key) != theirs.get(key)]
                theirs, ours = ({key: side.get(key) for key in keys} for side in (theirs, ours))
            told = "\n".join(self._told)
            raise AssertionError(f"{what}: the store says {theirs}, the graph {ours}\nafter\n{told}")


def _node(new: NewJob | None) -> Any:
    return new and pure.Node(new.id, new.after, new.when, new.soft, new.chain)
