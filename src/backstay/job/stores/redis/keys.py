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
    memory:<lane>       what a worker's lane did last; idle:<queue> has lanes whose claims stand, by when that ends
    log:<job>, outputs:<job>, workers, beats, cron, ticking
    artifacts:<job>, artifact:<job>:<name>      what is known of a job's files, and their parts
    run, run-doc        hashes: a run's record, and what only its readers want
    runs:<status>:<workflow>    runs by id; each also without the one, the other or both
    run-jobs:<run>, run-events:<run>    a run's jobs by id, its events in order
    run-end, run-deadline       finished runs by when they may go, others by when they are cancelled
    events              a stream of all runs' events: each entry names events of one run
    definition, definitions, definition-doc:<workflow>, tokens      in the first shard

docs/reference/redis-keys.md lists them all.
"""

from __future__ import annotations

from backstay.engine.redis.keys import escape


def nothing(namespace: str, number: int) -> str:
    """A key that never is. While a slot moves from node to node, a Cluster refuses a command that names a key which is
    not there (TRYAGAIN, and the engine comes again): so no script ever runs on half a shard.
    """
    return f"{{{escape(namespace)}:s{number:x}}}:nothing"


def shard(namespace: str, number: int) -> str:
    """A shard's own record."""
    return f"{{{escape(namespace)}:s{number:x}}}:meta"
