"""The thread behind an SQL engine: whatever waits is committed together, then answered."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from queue import Empty, SimpleQueue
from typing import Any

from holdfast.engine.base import Op
from holdfast.errors import Closed

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
    """Takes batches from any thread. `commit` carries out what has gathered and never raises; `tick` follows every
    commit and every idle minute; `end` is the thread's last act.
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
        self._inbox: SimpleQueue[list[Item] | None] = SimpleQueue()
        self._thread: threading.Thread | None = None
        self._starting = threading.Lock()
        self._stopped = False

    def put(self, ops: Sequence[Op[Any]], answer: Answer) -> None:
        """Queue a batch; `answer` is called from the group's thread with results or exceptions."""
        self.put_items([Item(op, place, answer) for place, op in enumerate(ops)])

    def put_items(self, items: list[Item]) -> None:
        with self._starting:
            if not self._stopped:
                if self._thread is None:
                    self._thread = threading.Thread(target=self._run, name=self._name, daemon=True)
                    self._thread.start()
                self._inbox.put(items)
                return
        settle(items, [Closed("this engine is closed") for _ in items])

    def stop(self) -> None:
        """Finish what was queued, then end. Safe twice."""
        with self._starting:
            self._stopped = True
            thread, self._thread = self._thread, None
            if thread is not None:
                self._inbox.put(None)  # nothing is queued behind it
        if thread is not None:
            thread.join()

    def _run(self) -> None:
        later: list[Item] = []
        try:
            while (items := self._gather(later)) is not None:
                results = self._commit(items) if items else []
                later = settle(items, results)
                self._tick()
        finally:
            self._end()

    def _gather(self, items: list[Item]) -> list[Item] | None:
        """What was put off and everything that waits, up to `LARGEST`. None: the end."""
        try:
            more = self._inbox.get(timeout=AGAIN if items else IDLE)
        except Empty:
            return items
        items = list(items)
        while True:
            if more is None:
                if not items:
                    return None
                self._inbox.put(None)  # after these
                return items
            items += more
            if len(items) >= LARGEST or self._inbox.empty():
                return items
            more = self._inbox.get()


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
