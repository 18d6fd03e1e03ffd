"""Turns of cron entries."""

from __future__ import annotations

from collections.abc import Sequence

from backstay.engine.base import Micros, Op, StoreOperation, Wake
from backstay.job.model import Tick
from backstay.job.stores.postgres.ending import Ends
from backstay.job.stores.postgres.enqueue import Enqueueing
from backstay.job.stores.postgres.rows import Part, ask, whole
from backstay.job.stores.postgres.statements import Texts
from backstay.job.stores.postgres.verbs import Verbs


class Cron(Verbs):
    """ticks, tick."""

    _enqueueing: Enqueueing

    def ticks(self, names: Sequence[str]) -> Op[dict[str, Micros]]:
        wanted = {"space": self.namespace, "names": Texts(sorted(set(names)))}

        def talk(now: Micros | None, _: list[Wake]) -> Part:
            known, _new = yield whole(("ticks_read", wanted), ("ticks", {**wanted, "now": now}))
            return dict(known)

        return StoreOperation(talk)

    def tick(self, tick: Tick) -> Op[bool]:
        def work(ends: Ends) -> Part:
            rows = yield from ask("tick", {"space": self.namespace, "name": tick.name, "at": tick.at})
            if not rows:
                return False
            yield from self._enqueueing.store([tick.job], ends.now, ends)
            return True

        return self.act(work)
