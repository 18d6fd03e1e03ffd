"""The blocking API of rate limits: the twin of `api.py`. Thread-safe."""

from __future__ import annotations

import builtins

from backstay.errors import Decision
from backstay.limit import admin, flows
from backstay.limit.options import BaseLimit, timeout_seconds
from backstay.limit.view import Use
from backstay.runtime.core import Core
from backstay.runtime.flows import run
from backstay.runtime.validation import Duration


class Limit(BaseLimit):
    """A rate limit. Each key has its own count."""

    __slots__ = ()

    def hit(self, key: str | None = None, cost: int = 1) -> Decision:
        """Charge `cost` if the limit allows it. A denied hit charges nothing, except with wire="n8n": n8n counts denied
        hits, too.
        """
        return run(flows.hit(self._core, self.spec, self._default_key() if key is None else key, cost))

    def peek(self, key: str | None = None, cost: int = 1) -> Decision:
        """Return the decision that a hit would get now, without charging anything."""
        return run(flows.peek(self._core, self.spec, self._default_key() if key is None else key, cost))

    def wait(self, key: str, cost: int = 1, *, timeout: Duration | None = None) -> Decision:
        """Reserve the earliest time at which the limit allows the cost, in FIFO order, and sleep until then. Raises
        RateLimited at once when that time is more than `timeout` seconds away. An exception during the sleep refunds
        the reservation.
        """
        return run(flows.wait(self._core, self.spec, key, cost, timeout_seconds(timeout)))

    def refund(self, key: str, cost: int = 1) -> None:
        """Refund a cost that was charged but not used."""
        run(flows.refund(self._core, self.spec, key, cost))

    def reset(self, key: str | None = None) -> None:
        """Set the count of this key to zero."""
        run(flows.reset_limit(self._core, self.spec, self._default_key() if key is None else key))


class Limits:
    """Inspects rate limits and resets keys: `stay.limits`."""

    __slots__ = ("_core",)

    def __init__(self, core: Core) -> None:
        self._core = core

    def list(self, name: str = "") -> builtins.list[Use]:
        """List the keys with a count above zero, of one limit or of all. On Redis this is a SCAN of all keys."""
        return run(admin.list_uses(self._core, name))

    def reset(self, name: str, key: str) -> int:
        """Delete the records of a key in a limit, for every rate and algorithm. Return how many there were."""
        return run(admin.reset_key(self._core, name, key))
