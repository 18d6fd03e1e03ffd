"""Count replica acknowledgements on a Cluster, for the node that currently serves the name."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from backstay.engine.base import Apply, Expired, steady
from backstay.engine.redis import keys
from backstay.engine.redis.link.protocol import ErrorReply
from backstay.engine.redis.replica_ack import RedisReplicaAcks
from backstay.engine.redis.topology.slots import MAX_REDIRECTS, parse_redirect, slot_of
from backstay.errors import EngineUnavailable

if TYPE_CHECKING:
    from backstay.engine.redis.topology.cluster import ClusterEngine

#: Seconds for the last node, if redirects have used up the time.
LEAST = 0.01


class ClusterReplicaAcks(RedisReplicaAcks):
    """Opens a second link to each node it asks, and follows redirects: if the slot has moved, its record has moved
    along, and the new node's replicas count.
    """

    def __init__(self, engine: ClusterEngine) -> None:
        super().__init__(engine.namespace, engine.second_link)
        self._engine = engine

    def confirm(self, op: Apply, replicas: int, within: float) -> tuple[Any, int]:
        engine = self._engine
        slot = slot_of(keys.wire_state(engine.namespace, op.room.name, op.name))
        node, asking, ends = engine.locate(slot), False, steady() + within
        for _ in range(MAX_REDIRECTS):
            acked = self._call(node, op, replicas, max(LEAST, ends - steady()), asking=asking)
            # After a redirect the WAIT counts for nothing, because the command did not run.
            if isinstance(acked.raw, ErrorReply) and (to := parse_redirect(acked.raw, node)):
                node, asking = to.node, to.is_ask
                if not to.is_ask:
                    engine.map.apply_redirect(to)
                continue
            reply, confirmed = self._decode(op, acked)
            if type(reply) is Expired:
                engine.note_clock(acked.link, reply.now)
            return reply, confirmed
        raise EngineUnavailable(f"{engine.seeds}: slot {slot} is redirected from node to node")
