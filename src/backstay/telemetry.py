"""What happens inside, told to whoever wants to know. Costs nothing while nobody does."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from backstay.hub.contain import contain

log = logging.getLogger("backstay")


@dataclass(frozen=True, slots=True)
class Event:
    """Something that happened: `lock.granted`, `lease.lost`, `link.connected`, … and its facts."""

    kind: str
    facts: dict[str, Any]


class Telemetry:
    """Counts every event and hands it to subscribers. A subscriber must be quick and thread-safe."""

    def __init__(self) -> None:
        self.counts: Counter[str] = Counter()
        self._subscribers: tuple[Callable[[Event], None], ...] = ()

    def subscribe(self, callback: Callable[[Event], None]) -> Callable[[], None]:
        """Call `callback` for every event from now on; returns what ends it."""
        self._subscribers = (*self._subscribers, callback)

        def end() -> None:
            self._subscribers = tuple(s for s in self._subscribers if s is not callback)

        return end

    @property
    def active(self) -> bool:
        """Whether anybody wants the facts; hot paths count and gather nothing when not."""
        return bool(self._subscribers)

    def emit(self, kind: str, **facts: Any) -> None:
        self.counts[kind] += 1
        if self._subscribers:
            self.tell(kind, **facts)

    def tell(self, kind: str, **facts: Any) -> None:
        """Hand an event that is counted already to the subscribers."""
        event = Event(kind, facts)
        for subscriber in self._subscribers:
            try:
                subscriber(event)
            except BaseException as error:
                contain(error)
                log.exception("a telemetry subscriber failed on %s", kind)
