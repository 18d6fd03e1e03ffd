"""Count how many replicas have acknowledged a command on a Cluster: the replicas of the node that currently serves the
command's key.
"""

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

#: Wait at least this many seconds for replicas, even if following redirects has used up the caller's `within`.
LEAST = 0.01


class ClusterReplicaAcks(RedisReplicaAcks):
    """Sends a command and a WAIT to the node that serves the command's key. They get a link of their own, because WAIT
    would block all other commands on the link. Follows redirects: if the slot has moved to another node, the command
    runs there and the replicas of that node are counted.
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
            # The command did not run on a node that redirects, so the count of that WAIT is ignored.
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
