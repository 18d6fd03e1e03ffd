"""Forgetting what has had its time."""

from __future__ import annotations

from typing import Any

from backstay.engine.base import Micros, Op, StoreOperation, Wake
from backstay.errors import ConfigError
from backstay.job.model import FINAL, State
from backstay.job.stores.postgres.rows import Part, inside, whole
from backstay.job.stores.postgres.statements import Texts
from backstay.job.stores.postgres.verbs import Verbs


class Pruner(Verbs):
    """purge, prune."""

    def purge(self, state: State, *, queue: str = "", limit: int = 1000) -> Op[int]:
        if state not in FINAL:
            raise ConfigError(f"only jobs that have ended can be purged ({', '.join(FINAL)}); got {state!r}")
        name = "purge" if state == "completed" else "purge_few"
        return self.one(name, {"state": state, "queue": queue, "limit": limit}, lambda rows: rows[0][0])

    def prune(self, shard: int, keep: int, limit: int = 1000) -> Op[int]:
        def talk(now: Micros | None, _: list[Wake]) -> Part:
            mine = {"space": self.namespace, "now": now, "limit": limit}
            (((old,),),) = yield whole(("prune", mine))
            # Whatever is left of the limit, for those that are too many; then what nobody counts.
            left = {**mine, "limit": limit - old, "keep": keep}
            ((many,),), _rest = yield whole(("prune_many", left), ("prune_rest", mine))
            runs = yield from self._prune_runs(mine, limit - old - many)
            return old + many + runs

        return StoreOperation(talk)

    def _prune_runs(self, mine: dict[str, Any], limit: int) -> Part:
        """Runs past their time, each whole with its jobs, begun while below the limit. Returns how many of both."""
        if limit <= 0:
            return 0
        (found,) = yield whole(("prune_find", {**mine, "limit": limit}))
        runs: list[str] = []
        for id_, jobs in found:
            if limit <= 0:
                break
            runs.append(id_)
            limit -= 1 + jobs
        if not runs:
            return 0
        of_these = {"space": mine["space"], "runs": Texts(sorted(runs))}
        yield inside(("prune_hold", of_these), ("run_hold", {**mine, "ids": Texts(sorted(runs))}))
        (counts,) = yield whole(("prune_runs", {**of_these, "now": mine["now"]}))
        return sum(count for (count,) in counts)
