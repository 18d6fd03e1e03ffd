"""What people do to jobs and queues."""

from __future__ import annotations

from collections.abc import Iterable

from holdfast.engine.base import Op
from holdfast.job.model import AGEING, Failure, Rate, State
from holdfast.job.postgres.ending import Ending, Ends
from holdfast.job.postgres.rows import AWAITED, Part, ask, encode_failure, inside
from holdfast.job.postgres.texts import Texts
from holdfast.job.postgres.verbs import Verbs


class ByHand(Verbs):
    """cancel, trigger, pause, limit_queue."""

    def cancel(self, job: str, reason: str) -> Op[State | None]:
        def work(ends: Ends) -> Part:
            mine = {"space": self.namespace, "id": job}
            rows = yield from ask("cancel_hold", mine)
            if not rows:
                rows = yield from ask("get", mine)
                return rows[0][3] if rows else None
            state, attempt, now = rows[0]
            if state == "running":
                yield inside(("cancel_request", {**mine, "reason": reason}))
                ends.lost(job)
                return "running"
            error = encode_failure(Failure("Cancelled", reason, attempt=attempt, at=ends.now or now))
            yield from ends.end([Ending(job, "cancelled", error=error)])
            return "cancelled"

        return self.act(work)

    def trigger(self, job: str) -> Op[State | None]:
        def work(ends: Ends) -> Part:
            mine = {"space": self.namespace, "id": job, "now": ends.now, "ageing": AGEING}
            rows = yield from ask("trigger_due", mine)
            ends.ready.update(rows)
            ended = yield from ask("trigger_hold", {"space": self.namespace, "ids": Texts([job])})
            if not ended:
                rows = yield from ask("get", mine)
                return rows[0][3] if rows else None
            ((_, state, chain),) = ended
            if state == "completed":
                return state
            yield from self._back(ends, [job], at_once=True)
            ((left,),) = yield from ask("after_forgive", mine)
            yield from self._wait_again(ends, chain)
            if left:
                return "blocked"
            rows = yield from ask("release", {"space": self.namespace, "now": ends.now, "ids": Texts([job])})
            ends.ready.update((id_, type_) for id_, type_, state in rows if state == "pending")
            return "pending"

        return self.act(work)

    def _back(self, ends: Ends, jobs: Iterable[str], *, at_once: bool) -> Part:
        """Jobs that ended are there again, blocked. Others may wait for any of them."""
        values = {"space": self.namespace, "now": ends.now, "ageing": AGEING, "flag": AWAITED, "at_once": at_once}
        yield inside(("trigger", {**values, "ids": Texts(sorted(jobs))}))

    def _wait_again(self, ends: Ends, chain: str) -> Part:
        """Those that were skipped because of a chain, and because of them, wait once more."""
        chains = [chain]
        while chains:
            rows = yield from ask("trigger_dependents", {"space": self.namespace, "chains": Texts(chains)})
            ids = Texts(sorted(job for (job,) in rows))
            held = yield from ask("trigger_hold", {"space": self.namespace, "ids": ids})
            still = {id_: of for id_, state, of in held if state == "skipped"}
            yield from self._back(ends, still, at_once=False)
            chains = list(still.values())

    def pause(self, queue: str, *, paused: bool) -> Op[None]:
        return self.one("pause", {"queue": queue, "paused": paused})

    def limit_queue(self, queue: str, rate: Rate | None) -> Op[None]:
        values = {"queue": queue, "interval": 0, "burst": 0, "bucket": ""}
        if rate is not None:
            values |= {"interval": rate.interval, "burst": rate.burst, "bucket": rate.bucket}
        return self.one("limit_queue", values)
