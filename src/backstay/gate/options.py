"""What lock, semaphore and read-write lock have in common in both APIs: checked options."""

from __future__ import annotations

from backstay.errors import ConfigError
from backstay.gate.durability import replicas
from backstay.gate.flows import NOBODY, Caller, Spec
from backstay.interop.n8n_wire import keys
from backstay.interop.n8n_wire.option import taken_scope
from backstay.runtime import validation
from backstay.runtime.core import Core
from backstay.runtime.validation import Duration

#: Longer queues make the record slow to rewrite; whoever comes later hears QueueFull.
MAX_WAITERS = 1000


class BaseGate:
    """A named gate seen by one caller. Cheap: make one where you need it."""

    __slots__ = ("_core", "_spec", "_wait")

    def __init__(self, core: Core, spec: Spec, wait: Duration | None) -> None:
        self._core = core
        self._spec = spec
        self._wait = None if wait is None else validation.seconds(wait, "wait", zero=True)

    @property
    def name(self) -> str:
        return self._spec.name

    def _patience(self, wait: Duration | Unset | None) -> float | None:
        if isinstance(wait, Unset):
            return self._wait
        return None if wait is None else validation.seconds(wait, "wait", zero=True)

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self._spec.name!r}>"


class Unset:
    """Not passed; None means something else."""


UNSET = Unset()


def spec(
    core: Core,
    name: str,
    exclusive: bool,
    capacity: int,
    ttl: Duration | None,
    renew: bool | None,
    max_hold: Duration | None,
    max_waiters: int,
    reentrant: bool,
    durability: str | None = None,
) -> Spec:
    """What the caller asked for, checked, with the policy's defaults filled in."""
    policy = core.policy
    return Spec(
        validation.name(name),
        exclusive,
        capacity,
        policy.lock_ttl if ttl is None else validation.seconds(ttl, "ttl"),
        policy.lock_renew if renew is None else renew,
        policy.lock_max_hold if max_hold is None else validation.seconds(max_hold, "max_hold"),
        MAX_WAITERS if max_waiters is MAX_WAITERS else validation.count(max_waiters, "max_waiters"),
        reentrant,
        replicas(core, durability) if durability is not None else 0,
    )


def n8n_spec(
    core: Core,
    name: str,
    ttl: Duration | None,
    renew: bool | None,
    max_hold: Duration | None,
    max_waiters: int,
    reentrant: bool,
    durability: str | None,
    poll: Duration | None,
) -> Spec:
    """A lock in n8n's keys: a long TTL that nobody renews unless asked, and no queue."""
    if max_waiters is not MAX_WAITERS:
        raise ConfigError("wire='n8n' has no queue, so it has no max_waiters: waiters look every `poll` seconds")
    if durability is not None:
        raise ConfigError("wire='n8n' waits for no replicas: leave out durability=, or use Backstay's own wire")
    return Spec(
        taken_scope(name, "name"),
        True,
        1,
        float(keys.TTL_SECONDS) if ttl is None else validation.seconds(ttl, "ttl"),
        renew is True,
        core.policy.lock_max_hold if max_hold is None else validation.seconds(max_hold, "max_hold"),
        MAX_WAITERS,
        reentrant,
        poll=keys.POLL_SECONDS if poll is None else validation.seconds(poll, "poll"),
    )


def caller(lock_id: str, execution_id: str, workflow_id: str, workflow_name: str) -> Caller:
    """Who asks, checked."""
    if not (lock_id or execution_id or workflow_id or workflow_name):
        return NOBODY
    for value, what in (
        (lock_id, "lock_id"),
        (execution_id, "execution_id"),
        (workflow_id, "workflow_id"),
        (workflow_name, "workflow_name"),
    ):
        if value:
            validation.name(value, what)
    return Caller(lock_id, execution_id, workflow_id, workflow_name)
