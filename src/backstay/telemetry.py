"""Telemetry: count internal events and pass them to subscribers. Without subscribers it only counts."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from backstay.hub.multiplexer import reraise_interrupt

log = logging.getLogger("backstay")


@dataclass(frozen=True, slots=True)
class Event:
    """An event. `kind` is its name (`lock.granted`, `lease.lost`, `link.connected`, …), `facts` are its details by
    name.
    """

    kind: str
    facts: dict[str, Any]


class Telemetry:
    """Counts every event and calls the subscribers with it. A subscriber must be fast and thread-safe: it runs on the
    thread that emits.
    """

    def __init__(self) -> None:
        self.counts: Counter[str] = Counter()
        self._subscribers: tuple[Callable[[Event], None], ...] = ()

    def subscribe(self, callback: Callable[[Event], None]) -> Callable[[], None]:
        """Call `callback` for every event from now on. Returns a function that unsubscribes it."""
        self._subscribers = (*self._subscribers, callback)

        def unsubscribe() -> None:
            self._subscribers = tuple(s for s in self._subscribers if s is not callback)

        return unsubscribe

    @property
    def has_subscribers(self) -> bool:
        """Whether there are subscribers. Without them, hot paths only count an event and do not collect its details."""
        return bool(self._subscribers)

    def emit(self, kind: str, **facts: Any) -> None:
        """Count an event and call the subscribers."""
        self.counts[kind] += 1
        if self._subscribers:
            self.notify(kind, **facts)

    def notify(self, kind: str, **facts: Any) -> None:
        """Call the subscribers with an event, without counting it: the caller has done so in `counts`."""
        event = Event(kind, facts)
        for subscriber in self._subscribers:
            try:
                subscriber(event)
            except BaseException as error:
                reraise_interrupt(error)
                log.exception("a telemetry subscriber failed on %s", kind)
