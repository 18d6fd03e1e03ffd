"""The thread behind an SQL engine: whatever waits is committed together, then answered."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Sequence
from typing import Any

from backstay.engine.base import Op
from backstay.engine.work_inbox import Inbox
from backstay.errors import Closed, EngineError, EngineUnavailable

log = logging.getLogger("backstay.engine")

#: One transaction takes at most this many operations, so that nobody waits behind a flood.
LARGEST = 1000
#: How often an idle thread looks after its rows.
IDLE = 60.0
#: How soon an operation that could not be carried out is tried again, if nobody else asks before.
AGAIN = 0.001
#: Instead of a result: not now, but with the next group.
LATER = object()

#: Instead of a result: somebody else answers.
ELSEWHERE = object()

#: Takes results by their place in the batch. Called once, or several times when some come later.
Answer = Callable[[Sequence[tuple[int, Any]]], None]


class Item:
    """One operation of a batch, how often it had to be put off, and since when (steady) it is waited for alone."""

    __slots__ = ("answer", "op", "place", "since", "skips")

    def __init__(self, op: Op[Any], place: int, answer: Answer) -> None:
        self.op = op
        self.place = place
        self.answer = answer
        self.skips = 0
        self.since = 0.0


class Group:
    """Takes batches from any thread. `commit` carries out what has gathered; `tick` follows every commit and every idle
    minute; `end` is the thread's last act. Whatever the first two raise, the thread goes on: everybody waits for it.
    """

    def __init__(
        self,
        name: str,
        *,
        commit: Callable[[list[Item]], list[Any]],
        tick: Callable[[], None] = lambda: None,
        end: Callable[[], None] = lambda: None,
    ) -> None:
        self._name = name
        self._commit = commit
        self._tick = tick
        self._end = end
        self._inbox: Inbox[list[Item]] = Inbox()
        self._thread: threading.Thread | None = None
        self._starting = threading.Lock()
        self._stopped = False

    def put(self, ops: Sequence[Op[Any]], answer: Answer) -> None:
        """Queue a batch; `answer` is called from the group's thread with results or exceptions."""
        self.put_items([Item(op, place, answer) for place, op in enumerate(ops)])

    def put_items(self, items: list[Item]) -> None:
        why: EngineError | Closed
        with self._starting:
            if self._stopped:
                why = Closed("this engine is closed")
            else:
                try:
                    if self._thread is None:
                        thread = threading.Thread(target=self._run, name=self._name, daemon=True)
                        thread.start()
                        self._thread = thread  # only now: where none could be started, the next to come tries again
                except RuntimeError as error:
                    why = EngineUnavailable(f"no thread could be started for {self._name}: {error}")
                else:
                    self._inbox.put(items)
                    return
        settle(items, [type(why)(str(why)) for _ in items])

    def stop(self) -> None:
        """Finish what was queued, then end. Safe twice."""
        with self._starting:
            self._stopped = True
            thread, self._thread = self._thread, None
            self._inbox.ring()
        if thread is not None:
            thread.join()

    def _run(self) -> None:
        later: list[Item] = []
        try:
            while (items := self._gather(later)) is not None:
                later = settle(items, self._results(items) if items else [])
                try:
                    self._tick()
                except Exception:
                    log.exception("%s could not look after its rows", self._name)
        finally:
            self._end()

    def _results(self, items: list[Item]) -> list[Any]:
        try:
            return self._commit(items)
        except Exception as error:  # noqa: BLE001 - a bug: every caller gets it; without a thread nobody gets anything
            return [error for _ in items]

    def _gather(self, items: list[Item]) -> list[Item] | None:
        """What was put off and everything that waits, up to `LARGEST`. None: the end."""
        if items or not self._stopped:
            self._inbox.wait(AGAIN if items else IDLE)
        stopped = self._stopped  # before the inbox is looked at: nothing is put in after that
        while len(items) < LARGEST and (more := self._inbox.take()) is not None:
            items += more
        return None if stopped and not items else items


def settle(items: list[Item], results: list[Any]) -> list[Item]:
    """Give every batch its results at once; returns what was put off."""
    later: list[Item] = []
    answers: dict[Answer, list[tuple[int, Any]]] = {}
    for item, result in zip(items, results, strict=True):
        if result is LATER:
            item.skips += 1
            later.append(item)
        elif result is ELSEWHERE:
            continue
        elif item.answer in answers:
            answers[item.answer].append((item.place, result))
        else:
            answers[item.answer] = [(item.place, result)]
    for answer, mine in answers.items():
        answer(mine)
    return later
