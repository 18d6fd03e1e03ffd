"""Services: objects that exist once per Backstay, by typed key.

A room defines a key beside the class of the object, and gets the object where it needs it:

    ANNOUNCER = Service("job announcer", make_announcer, flush=Announcer.flush)
    core.services.get(ANNOUNCER).announce(ready)

The object is created at first use. `assembly/` provides the objects that depend on the engine (the stores).
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from backstay.errors import ConfigError

if TYPE_CHECKING:
    from backstay.runtime.core import Core

T = TypeVar("T")


class Service(Generic[T]):
    """The key of a service. Keys compare by identity, not by name.

    make: Creates the object at first use. None: another module calls `Services.set` or `Services.provide`.
    survives_fork: Whether a forked child keeps the object. Otherwise the child creates its own.
    flush, close: Functions that get the object when the Backstay closes: `flush` while it still accepts callers,
        `close` after that. Both may be called twice.
    """

    __slots__ = ("close", "flush", "make", "name", "survives_fork")

    def __init__(
        self,
        name: str,
        make: Callable[[Core], T] | None = None,
        *,
        survives_fork: bool = False,
        flush: Callable[[T], Coroutine[Any, Any, None]] | None = None,
        close: Callable[[T], None] | None = None,
    ) -> None:
        self.name = name
        self.make = make
        self.survives_fork = survives_fork
        self.flush = flush
        self.close = close

    def __repr__(self) -> str:
        return f"<Service {self.name}>"


class Services:
    """The services of one Backstay. Any thread may call it; if two threads create a service at once, both get the same
    object.
    """

    __slots__ = ("_core", "_made", "_makers")

    def __init__(self, core: Core) -> None:
        self._core = core
        self._made: dict[Service[Any], Any] = {}
        self._makers: dict[Service[Any], Callable[[Core], Any]] = {}

    def get(self, key: Service[T]) -> T:
        """Return the service's object; create it if it does not exist yet."""
        try:
            found: T = self._made[key]
        except KeyError:
            make = self._makers.get(key, key.make)
            if make is None:
                raise ConfigError(f"this Backstay was created without a {key.name}") from None
            found = self._made.setdefault(key, make(self._core))
        return found

    def find(self, key: Service[T]) -> T | None:
        """Return the object if it exists already, else None."""
        return self._made.get(key)

    def provide(self, key: Service[T], make: Callable[[Core], T]) -> None:
        """Replace the function that creates the object, before its first use."""
        self._makers[key] = make

    def set(self, key: Service[T], service: T) -> None:
        """Set the service's object, replacing an existing one."""
        self._made[key] = service

    def discard(self, key: Service[Any]) -> None:
        """Remove the object without closing it. Safe to call twice."""
        self._made.pop(key, None)

    def share(self, other: Services, *keys: Service[Any]) -> None:
        """For these keys, use the objects of another Backstay from now on. Objects that do not exist yet are created by
        that Backstay.
        """
        for key in keys:
            self._made[key] = other.get(key)

    async def flush(self) -> None:
        """Flush all services. Called before the Backstay closes. Safe to call twice."""
        for key, service in list(self._made.items()):
            if key.flush is not None:
                await key.flush(service)

    def close(self) -> None:
        """Close all services. Called once the Backstay accepts no more callers, so none of them is used again. Safe to
        call twice.
        """
        for key, service in list(self._made.items()):
            if key.close is not None:
                key.close(service)

    def after_fork(self) -> None:
        """In a forked child: keep only the services that survive a fork."""
        self._made = {key: service for key, service in self._made.items() if key.survives_fork}
