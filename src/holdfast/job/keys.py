"""Where jobs lie in Redis: every key of a shard begins with the shard's hash tag, so all of them share a slot.

`{<namespace>:s<N>}:meta` is the shard's own record; scripts are given it as their key and build the others on its tag:

    job, doc            hashes: a job's record, and its arguments
    all                 every job, by id
    lane:<lane>         pending jobs by rank; lanes:<queue> has the names of a queue's lanes that are not empty
    due, lease          scheduled jobs by when they are due; running ones by when their lease ends
    end:<state>         final jobs by when they may go
    parked:…, park:<k>  pending jobs whose concurrency key is full, by lane; running has how many of each key run;
                        parked-since:<queue> has them by when they became due
    unique:<key>        which job has a unique key
    waits:<job>, upstream:<job>, awaiting:<chain>, chain    who waits for what, what came of it, a chain's last job
    outbox, unregistered    what other shards have not been told yet
    rate:<bucket>, queue-rate:<queue>, queues, count        rates, settings and numbers
    memory:<lane>       what a worker's lane did last
    log:<job>, outputs:<job>, workers, beats, cron, ticking
"""

from __future__ import annotations

from holdfast.engine.redis.keys import escape


def nothing(namespace: str, number: int) -> str:
    """A key that never is. While a slot moves from node to node, a Cluster refuses a command that names a key which is
    not there (TRYAGAIN, and the engine comes again): so no script ever runs on half a shard.
    """
    return f"{{{escape(namespace)}:s{number:x}}}:nothing"


def shard(namespace: str, number: int) -> str:
    """A shard's own record."""
    return f"{{{escape(namespace)}:s{number:x}}}:meta"
