"""The Redis keys of jobs: every key of a shard begins with the shard's hash tag, so all of them share a slot.

`{<namespace>:s<N>}:meta` is the shard's own record; scripts get it as KEYS[1] and build the other keys on its tag:

    job, doc            hashes: a job's record, and its arguments
    all                 all jobs, by id
    lane:<lane>         pending jobs by rank; lanes:<queue>: names of the queue's lanes that are not empty
    due, lease          scheduled jobs by due time; running jobs by the end of their lease
    end:<state>         final jobs by the time at which they may be deleted
    parked:…, park:<k>  pending jobs whose concurrency key is full, by lane; running: number of running jobs by key;
                        parked-since:<queue>: parked jobs by due time
    unique:<key>        the job that holds a unique key
    waits:<job>, upstream:<job>, awaiting:<chain>, chain    open blockers of a job, their results, waiters of a chain,
                        the last job of a chain
    outbox, unregistered    chain ends and waiters that other shards do not know of yet
    rate:<bucket>, queue-rate:<queue>, queues, count        rate buckets, queue settings and job counts
    memory:<channel>    the last exchange of a worker channel; idle:<queue>: channels whose claims wait in the shard, by
                        the end of that wait
    log:<job>, outputs:<job>, workers, beats, cron, ticking
    artifacts:<job>, artifact:<job>:<name>      metadata of a job's artifacts, and their parts
    run, run-doc        hashes: a run's record, and its document
    runs:<status>:<workflow>    runs by id; also without status, without workflow and without both
    run-jobs:<run>, run-events:<run>    a run's jobs by id, its events in order
    run-end, run-deadline       finished runs by the time at which they may be deleted, open runs by deadline
    events              a stream of all runs' events: each entry refers to events of one run
    definition, definitions, definition-doc:<workflow>, tokens      in the first shard

docs/reference/redis-keys.md lists them all.
"""

from __future__ import annotations

from backstay.engine.redis.keys import escape


def nothing(namespace: str, number: int) -> str:
    """Return a key that never exists. While a Cluster migrates a slot, it rejects a command of several keys unless all
    are present (TRYAGAIN; the engine retries), so no script ever runs on half a shard.
    """
    return f"{{{escape(namespace)}:s{number:x}}}:nothing"


def shard(namespace: str, number: int) -> str:
    """Return the key of a shard's own record."""
    return f"{{{escape(namespace)}:s{number:x}}}:meta"
