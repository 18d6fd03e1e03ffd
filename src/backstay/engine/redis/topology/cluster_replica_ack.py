"""How many replicas have a command, on a Cluster: those of the node that serves its name at that moment."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from backstay.engine.base import Apply, Expired, steady
from backstay.engine.redis import keys
from backstay.engine.redis.link.protocol import Refusal
from backstay.engine.redis.replica_ack import RedisWitness
from backstay.engine.redis.topology.slots import HOPS, redirect, slot_of
from backstay.errors import EngineUnavailable

if TYPE_CHECKING:
    from backstay.engine.redis.topology.cluster import ClusterEngine

#: What a node gets whose name has just come to it, when those before it have used up the time.
LEAST = 0.01


class ClusterWitness(RedisWitness):
    """A second link to each node that is asked. Where a name has moved on, its new node is asked: the record went
    along, and what counts is who has it there.
    """

    def __init__(self, engine: ClusterEngine) -> None:
        super().__init__(engine.namespace, engine.second_link)
        self._engine = engine

    def confirm(self, op: Apply, replicas: int, within: float) -> tuple[Any, int]:
        engine = self._engine
        slot = slot_of(keys.wire_state(engine.namespace, op.room.name, op.name))
        place, asking, ends = engine.located(slot), False, steady() + within
        for _ in range(HOPS):
            told = self._ask(place, op, replicas, max(LEAST, ends - steady()), asking=asking)
            # Whatever WAIT counted after a refusal was about something else.
            if isinstance(told.raw, Refusal) and (to := redirect(told.raw, place)):
                place, asking = to.place, to.once
                if not to.once:
                    engine.map.moved(to)
                continue
            reply, confirmed = self._judge(op, told)
            if type(reply) is Expired:
                engine.told(told.link, reply.now)
            return reply, confirmed
        raise EngineUnavailable(f"{engine.seeds}: slot {slot} is sent from node to node")
