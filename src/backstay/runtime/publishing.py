"""Publish messages and job announcements over the hub, and take from an announcement's counter.

An announcement reaches all workers. Its counter starts at the number of announced jobs: a worker first takes from the
counter, and claims jobs only if it got more than 0.

Messages are fire and forget: correctness never depends on one. Publishing and taking are not idempotent, so they are
retried only if they were certainly not sent. A publish whose reply was lost raises OutcomeUnknown: it may have been
delivered. Taking fails open: if the engine fails, the caller gets all `n` that it requested, because a claim too many
costs little, but a claim too few leaves jobs pending.
"""

from __future__ import annotations

from typing import Any, cast

from backstay.engine.base import Op, PublishHint
from backstay.errors import ConfigError, EngineError
from backstay.hub import protocol
from backstay.hub.protocol import LONGEST_PAYLOAD
from backstay.runtime import validation
from backstay.runtime.core import Core
from backstay.runtime.lost_replies import send_at_most_once

#: How often a message that could not be sent is retried. A later retry would be useless: by then the workers and
#: waiters have polled, and know what the message says.
RETRIES = 1


async def publish(core: Core, channel: str, payload: str) -> None:
    given = cast("object", payload)
    if not isinstance(given, str):
        raise ConfigError(f"a payload is text; got {type(given).__name__}")
    try:
        length = len(payload.encode())
    except UnicodeEncodeError:
        raise ConfigError("a payload is valid unicode; this one has lone surrogates") from None
    if length > LONGEST_PAYLOAD:
        raise ConfigError(
            f"a payload has at most {LONGEST_PAYLOAD} bytes; got {length}. Store the data and publish a reference."
        )
    name = validation.check_name(channel, "channel")
    await _send(core, name, core.hub.publish(protocol.channel(core.hub_prefix, name), payload))


async def publish_scheduled(core: Core, job_type: str, count: int) -> str:
    """Announce to all workers that `count` jobs of a type are pending. Returns the id of the announcement, with which
    workers take from its counter.
    """
    validation.check_name(job_type, "type")
    validation.check_count(count, "count")
    hint_id = protocol.new_hint_id()
    await _send(core, protocol.SCHEDULED, _announce(core, job_type, count, hint_id))
    return hint_id


def _announce(core: Core, job_type: str, count: int, hint_id: str) -> PublishHint:
    """Build the operation that publishes the announcement and creates its counter."""
    channel = protocol.channel(core.hub_prefix, protocol.SCHEDULED)
    payload = protocol.write_scheduled(hint_id, job_type)
    return core.hub.publish_hint(protocol.hint_key(core.hub_prefix, hint_id), count, channel, payload)


async def publish_id(core: Core, channel: str, value: str, what: str) -> None:
    """Publish a message whose payload is the id of a chain (the chain has ended) or of a job (its worker has lost the
    lease).
    """
    await publish(core, channel, validation.check_name(value, what))


async def _send(core: Core, channel: str, op: Op[Any]) -> None:
    core.check_open()
    await send_at_most_once(core.hub_port, op, retries=RETRIES, telemetry=core.telemetry)
    core.telemetry.emit("hub.published", channel=channel)


async def take_hint(core: Core, hint_id: str, n: int) -> int:
    core.check_open()
    validation.check_count(n, "n")
    if hint_id == "":  # a `missed` message has no hint
        return n
    validation.check_key(hint_id, "hint_id")
    try:
        taken = await core.hub_port.apply(core.hub.take_hint(protocol.hint_key(core.hub_prefix, hint_id), n))
    except EngineError as error:
        core.telemetry.emit("hub.hint_unknown", hint_id=hint_id, why=type(error).__name__)
        return n
    core.telemetry.emit("hub.hint_taken" if taken else "hub.hint_denied", hint_id=hint_id, count=taken)
    return taken
