"""The root of the error tree, errors of the caller (invalid arguments, wrong event loop, use after close), and errors
of the engine.
"""

from __future__ import annotations


class BackstayError(Exception):
    """Base class of every error that Backstay raises."""


class ConfigError(BackstayError, ValueError):
    """An argument or a setting is invalid. The message names the value and shows a valid one."""


class WrongLoop(BackstayError):
    """An async Backstay belongs to the first event loop that uses it; create one per loop."""


class Closed(BackstayError):
    """This Backstay is closed; create a new one."""


class EngineError(BackstayError):
    """The engine failed, not the caller."""

    #: True if the same request fails again, whatever changes on the server. Background work (the deferred release of a
    #: lock, a worker's exchange) is retried after any other EngineError: an outage ends, and rights are restored.
    is_permanent: bool = False


class EngineUnavailable(EngineError):
    """The engine is not reachable or cannot serve now: it starts, is read-only, or has no memory or disk space left.
    Nothing was applied, so a retry is safe.
    """


class NotReplicated(EngineUnavailable):
    """Fewer replicas than `durability` requires confirmed a grant in time. The grant was released; nothing is held."""

    def __init__(self, *, name: str, wanted: int, confirmed: int, within: float) -> None:
        super().__init__(
            f"{confirmed} of {wanted} replicas confirmed the grant of {name!r} within {within:g} s, so it was"
            " released. Check the replicas (backstay doctor), or require fewer."
        )
        self.name = name
        self.wanted = wanted
        self.confirmed = confirmed
        self.within = within


class OutcomeUnknown(EngineError):
    """The request was sent and its reply was lost: it may or may not have been applied."""


class EngineRefused(EngineError):
    """The engine rejected the request: a wrong password, missing permissions, too old a version, or a value that it
    cannot store.
    """


class CorruptRecord(EngineError):
    """A stored record cannot be decoded: it is damaged, or written by another version."""

    is_permanent = True


class SchemaTooNew(EngineError):
    """The database was written by a newer Backstay. Upgrade this process first."""

    is_permanent = True
