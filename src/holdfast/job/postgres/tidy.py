"""Forgetting what has had its time."""

from __future__ import annotations

from holdfast.engine.base import Micros, Op, Wake, Within
from holdfast.errors import ConfigError
from holdfast.job.model import FINAL, State
from holdfast.job.postgres.rows import Part, whole
from holdfast.job.postgres.verbs import Verbs


class Tidy(Verbs):
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
            return old + many

        return Within(talk)
