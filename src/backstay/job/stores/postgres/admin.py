"""What people do to jobs and queues."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from backstay.engine.base import Op
from backstay.job.model import AGEING, StartRate, State
from backstay.job.stores.postgres.ending import Ends, cancelled
from backstay.job.stores.postgres.enqueue import Enqueueing
from backstay.job.stores.postgres.rows import AWAITED, Part, ask, inside
from backstay.job.stores.postgres.statements import Texts, storable
from backstay.job.stores.postgres.verbs import Verbs

#: What can be tried again.
TRIGGERED = ("scheduled", "failed", "cancelled", "skipped")


class Admin(Verbs):
    """cancel, trigger, pause, limit_queue."""

    _enqueueing: Enqueueing

    def cancel(self, job: str, reason: str) -> Op[State | None]:
        def work(ends: Ends) -> Part:
            mine = {"space": self.namespace, "id": job}
            rows = yield from ask("cancel_hold", mine)
            if not rows:
                rows = yield from ask("get", mine)
                return rows[0][3] if rows else None
            state, attempt, now = rows[0]
            if state == "running":
                yield inside(("cancel_request", {**mine, "reason": storable(reason)}))
                ends.lost(job)
                return "running"
            yield from ends.end([cancelled(job, reason, attempt, ends.now or now)])
            return "cancelled"

        return self.act(work)

    def trigger(self, job: str) -> Op[State | None]:
        def work(ends: Ends) -> Part:
            mine = {"space": self.namespace, "id": job}
            rows = yield from ask("trigger_look", mine)
            if not rows:
                return None
            ((state, chain, stays),) = rows
            if stays or state not in TRIGGERED:
                return "pending" if state == "parked" else state
            if state != "scheduled" and (yield from self._is_held_back(job)):
                return state
            moved = yield from self._at_once(ends, job, state)
            if not moved:  # somebody else was first
                rows = yield from ask("get", mine)
                return rows[0][3] if rows else None
            yield from self._listen_again([job])
            if state != "scheduled":
                yield from self._wait_again(ends, chain)
            return (yield from self.let_go(ends, [job])).get(job, "blocked")

        return self.act(work)

    def _is_held_back(self, job: str) -> Part:
        """Whether a job of a run would be skipped again at once. What it waits for and has not ended cannot, from now
        on, before this transaction does.
        """
        rows = yield from ask("after_of", {"space": self.namespace, "ids": Texts([job])})
        yield from self._enqueueing.over({chain for _, chain, _ in rows}, follows=True)
        rows = yield from ask("trigger_held_back", {"space": self.namespace, "id": job})
        return bool(rows) and rows[0][0]

    def _at_once(self, ends: Ends, job: str, state: State) -> Part:
        """The job is due now and has all its attempts: blocked, for now. Returns whether it was as it was said."""
        if state == "scheduled":
            values = {"space": self.namespace, "id": job, "now": ends.now, "ageing": AGEING}
            rows = yield from ask("trigger_due", values)
            for id_, flags, run in rows:
                ends.moved(flags, run, id_, "scheduled", "blocked")
            return bool(rows)
        held = yield from ask("trigger_hold", {"space": self.namespace, "ids": Texts([job])})
        if not held or held[0][1] not in TRIGGERED:
            return False
        yield from self.back(ends, [job], at_once=True)
        return True

    def back(self, ends: Ends, jobs: Iterable[str], *, at_once: bool) -> Part:
        """Jobs that ended, and are held, are there again, blocked. Others may wait for any of them."""
        values = {"space": self.namespace, "now": ends.now, "ageing": AGEING, "flag": AWAITED, "at_once": at_once}
        rows = yield from ask("trigger", {**values, "ids": Texts(sorted(jobs))})
        for id_, flags, run, was in rows:
            ends.moved(flags, run, id_, was, "blocked")

    def _listen_again(self, jobs: Iterable[str]) -> Part:
        """Whatever these waited for and has not ended now, they wait for again."""
        rows = yield from ask("after_of", {"space": self.namespace, "ids": Texts(sorted(jobs))})
        if not rows:
            return
        over = yield from self._enqueueing.over({chain for _, chain, _ in rows}, follows=True)
        yield from self.unhear([(job, chain) for job, chain, ended in rows if ended and chain not in over])

    def unhear(self, pairs: Sequence[tuple[str, str]]) -> Part:
        """Jobs wait for chains again."""
        jobs, chains = [job for job, _ in pairs], [chain for _, chain in pairs]
        if jobs:
            yield inside(("after_again", {"space": self.namespace, "jobs": Texts(jobs), "chains": Texts(chains)}))

    def let_go(self, ends: Ends, jobs: Iterable[str]) -> Part:
        """Of these blocked jobs, those that wait for nobody can be had. Returns what they are now."""
        ids = sorted(jobs)
        rows = yield from ask("after_left", {"space": self.namespace, "ids": Texts(ids)})
        left = {id_ for (id_,) in rows}
        free = [id_ for id_ in ids if id_ not in left]
        if not free:
            return {}
        rows = yield from ask("release", {"space": self.namespace, "now": ends.now, "ids": Texts(free)})
        ends.released(rows, "blocked")
        return {row[0]: row[2] for row in rows}

    def _wait_again(self, ends: Ends, chain: str) -> Part:
        """Those that were skipped because of a chain, and because of them, wait once more."""
        skipped: dict[str, str] = {}
        chains = [chain]
        while chains:
            rows = yield from ask("trigger_dependents", {"space": self.namespace, "chains": Texts(chains)})
            ids = Texts(sorted(job for (job,) in rows if job not in skipped))
            held = yield from ask("trigger_hold", {"space": self.namespace, "ids": ids})
            still = {id_: of for id_, state, of in held if state == "skipped"}
            skipped |= still
            chains = list(still.values())
        # Only now: until then each is found, as skipped, behind every one of its blockers that comes back with it.
        if skipped:
            yield from self.back(ends, skipped, at_once=False)

    def pause(self, queue: str, *, paused: bool) -> Op[None]:
        return self.one("pause", {"queue": queue, "paused": paused})

    def limit_queue(self, queue: str, rate: StartRate | None) -> Op[None]:
        values = {"queue": queue, "interval": 0, "burst": 0, "bucket": ""}
        if rate is not None:
            values |= {"interval": rate.interval, "burst": rate.burst, "bucket": rate.bucket}
        return self.one("limit_queue", values)
