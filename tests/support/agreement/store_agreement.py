"""Open a job store on a clock that the test sets, and play random histories on it."""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Callable, Iterator
from typing import Any

from hypothesis import HealthCheck, settings

from backstay.assembly.backends import open_job_store
from backstay.testing.clocked import open_clocked

#: The same histories in every run.
THOROUGH = settings(
    max_examples=300,
    deadline=None,
    print_blob=True,
    derandomize=True,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.function_scoped_fixture],
)
#: Settings for a server, on which each command takes a round trip and a commit.
ON_A_SERVER = settings(THOROUGH, max_examples=100)
#: Settings for soak tests: new histories in every run.
FOR_LONG = settings(THOROUGH, max_examples=3000, derandomize=False)
#: The time of the first history, and the time from one history to the next, in µs. A history must begin after the end
#: of the previous one, since the database stores the latest time.
START, APART = 1_790_000_000_000_000, 1_000_000_000_000


class StoreUnderTest:
    """A job store on one engine, whose clock returns the times of the history."""

    def __init__(self, url: str, namespace: str) -> None:
        self._now = START
        self._namespace = namespace
        self._engine = open_clocked(url, namespace, lambda: self._now)
        self._spaces = itertools.count(1)

    def play(self, history: Callable[[Callable[..., Any], int, int], Any], *script: Any) -> None:
        """Create a history with `history(apply, now, space)` and play the script on it, in a new namespace."""
        space = next(self._spaces)
        store = open_job_store(self._engine, self._namespace, 1, namespace=f"{self._namespace}-{space}")

        def apply(now: int, verb: str, args: tuple[Any, ...], named: dict[str, Any]) -> Any:
            self._now = now
            return self._engine.apply(getattr(store, verb)(*args, **named))

        history(apply, START + space * APART, space).play(*script)

    def close(self) -> None:
        self._engine.close_blocking()


@contextlib.contextmanager
def store_under_test(url: str, namespace: str) -> Iterator[StoreUnderTest]:
    store = StoreUnderTest(url, namespace)
    try:
        yield store
    finally:
        store.close()
