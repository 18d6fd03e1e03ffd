"""Validate the options of locks, semaphores and read-write locks, for both APIs."""

from __future__ import annotations

from backstay.gate.durability import required_replicas
from backstay.gate.flows import ANONYMOUS, CallerOptions, GateSpec
from backstay.runtime import validation
from backstay.runtime.core import Core
from backstay.runtime.validation import Duration

#: A longer queue would make the record slow to rewrite; further callers get QueueFull.
MAX_WAITERS = 1000


class BaseGate:
    """A handle to one lock, semaphore or read-write lock; base class of the handles of both APIs. Creating a handle
    sends nothing to the engine, so it is cheap.
    """

    __slots__ = ("_core", "_spec", "_wait")

    def __init__(self, core: Core, spec: GateSpec, wait: Duration | None) -> None:
        self._core = core
        self._spec = spec
        self._wait = None if wait is None else validation.to_seconds(wait, "wait", zero=True)

    @property
    def name(self) -> str:
        return self._spec.name

    def _wait_seconds(self, wait: Duration | Unset | None) -> float | None:
        if isinstance(wait, Unset):
            return self._wait
        return None if wait is None else validation.to_seconds(wait, "wait", zero=True)

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self._spec.name!r}>"


class Unset:
    """The type of UNSET, the default of `wait`, which means that the caller did not pass the option. None cannot be the
    default: it means to wait without limit.
    """


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
) -> GateSpec:
    """Validate the options and return them. For `ttl`, `renew` and `max_hold`, None means the default in the policy."""
    policy = core.policy
    return GateSpec(
        validation.check_name(name),
        exclusive,
        capacity,
        policy.lock_ttl if ttl is None else validation.to_seconds(ttl, "ttl"),
        policy.lock_renew if renew is None else renew,
        policy.lock_max_hold if max_hold is None else validation.to_seconds(max_hold, "max_hold"),
        MAX_WAITERS if max_waiters is MAX_WAITERS else validation.check_count(max_waiters, "max_waiters"),
        reentrant,
        required_replicas(core, durability) if durability is not None else 0,
    )


def caller_options(lock_id: str, execution_id: str, workflow_id: str, workflow_name: str) -> CallerOptions:
    """Validate the ids and the workflow name with which a caller identifies itself to `acquire`."""
    if not (lock_id or execution_id or workflow_id or workflow_name):
        return ANONYMOUS
    for value, what in (
        (lock_id, "lock_id"),
        (execution_id, "execution_id"),
        (workflow_id, "workflow_id"),
        (workflow_name, "workflow_name"),
    ):
        if value:
            validation.check_name(value, what)
    return CallerOptions(lock_id, execution_id, workflow_id, workflow_name)
