"""What the parts of the PostgreSQL store share."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from backstay.engine.base import Micros, StoreOperation, Wake
from backstay.job.stores.postgres.ending import Ends
from backstay.job.stores.postgres.rows import WAITS, Part, inside, job_of, whole
from backstay.job.stores.postgres.statements import Texts


class Verbs:
    """Makes operations of talks."""

    def __init__(self, namespace: str, prefix: str) -> None:
        self.namespace = namespace
        self.prefix = prefix

    def act(self, work: Callable[[Ends], Part]) -> StoreOperation[Any]:
        """A verb of several rounds in one transaction; hints go out after its commit."""

        def talk(now: Micros | None, wakes: list[Wake]) -> Part:
            ends = Ends(self.namespace, self.prefix, now, wakes)
            answer = yield from work(ends)
            yield whole(*(yield from ends.settle()))
            ends.publish_wakes()
            return answer

        return StoreOperation(talk)

    def one(
        self,
        name: str,
        values: Mapping[str, Any],
        answer: Callable[[list[Any]], Any] = lambda _: None,
        *,
        holding: str = "",
        reads: bool = False,
    ) -> StoreOperation[Any]:
        """A verb of one statement; with one before it that holds what this one changes."""

        def talk(now: Micros | None, _: list[Wake]) -> Part:
            given = {"space": self.namespace, "now": now, **values}
            *_before, rows = yield whole(*([(holding, given)] if holding else []), (name, given))
            return answer(rows)

        return StoreOperation(talk, reads=reads)

    def jobs(self, rows: list[Any], *, commit: bool) -> Part:
        """Rows of get.sql as jobs, with the chains that they wait for or waited for. `commit`: in a round of its own,
        else inside a transaction.
        """
        after: dict[str, list[tuple[str, bool]]] = {}
        # What a job of a run that has completed waited for, it knows by itself.
        waiting = [row[0] for row in rows if row[27] & WAITS and not (row[28] and row[3] == "completed")]
        if waiting:
            statement = ("after_of", {"space": self.namespace, "ids": Texts(waiting)})
            (found,) = yield (whole if commit else inside)(statement)
            for id_, chain, ended in found:
                after.setdefault(id_, []).append((chain, ended))
        return [job_of(row, after.get(row[0], ())) for row in rows]
