"""The Redis keys of jobs. Every key of a shard begins with the shard's hash tag, so all of them share a Cluster slot.

`{<namespace>:s<N>}:meta` is the shard's meta record, a hash with the number of shards and the last fence. Scripts get
its key as KEYS[1] and build the other keys on its tag:

    job, doc            hashes: each job's record; its arguments, metadata and blockers
    all                 all jobs, by id
    lane:<lane>         pending jobs by rank; lanes:<queue>: names of the queue's lanes that are not empty
    due, lease          scheduled jobs by due time; running jobs by the end of their lease
    end:<state>         final jobs by the time at which they may be deleted
    parked:<key>:<lane> pending jobs whose concurrency key is full, by rank; parked-lanes:<key>: lanes of these jobs;
                        parked-since:<queue>: parked jobs by due time; running: number of running jobs by key
    unique:<key>        the job that holds a unique key
    waits:<job>, upstream:<job>     blockers of a job that have not ended; outcomes of its blockers that have ended
    awaiting:<chain>, chain         dependents of a chain; the last job of each chain
    outbox, unregistered            ended chains whose outcome is not delivered to dependents in other shards yet; jobs
                                    that the other shard does not know yet as dependents of one of its chains
    rate:<bucket>, queue-rate:<queue>       rate limits: state of a bucket, state of a queue's limit
    queues, count       settings of queues (paused, rate limit); number of jobs by state and queue
    reply:<channel>     the last exchange of a worker channel; idle:<queue>: channels whose claims wait in the shard, by
                        the end of that wait
    log:<job>, outputs:<job>        lines of a job's log; its outputs
    workers, heartbeats             descriptions of the workers; workers by the time of their last heartbeat
    cron, cron-outbox               last tick of each cron entry; jobs of ticks that belong to other shards
    artifacts:<job>, artifact:<job>:<name>      metadata of a job's artifacts, and their parts
    run, run-doc        hashes: a run's record, and its document
    runs:<status>:<workflow>    runs by id; also without status, without workflow and without both
    run-jobs:<run>, run-events:<run>    a run's jobs by id, its events in order
    run-end, run-deadline       finished runs by the time at which they may be deleted, open runs by deadline
    events              a stream of all runs' events: each entry refers to events of one run
    definition, definitions         in the first shard: newest version of each workflow definition; workflows by name
    definition-doc:<workflow>       in the first shard: documents of a definition, by version
    tokens, secrets     in the first shard: access tokens of the server; secrets of the namespace

docs/reference/redis-keys.md lists all keys with their types.
"""

from __future__ import annotations

from backstay.engine.redis.keys import escape


def absent(namespace: str, number: int) -> str:
    """Return the absent key, which never exists. Every script names it. While a Cluster migrates the shard's slot, it
    rejects a command with several keys unless all of them are present (TRYAGAIN; the engine retries). So it rejects
    every script, and none runs on the half of the shard that has already moved.
    """
    return f"{{{escape(namespace)}:s{number:x}}}:absent"


def shard(namespace: str, number: int) -> str:
    """Return the key of a shard's meta record, a hash with the number of shards, the last fence, and the job or run at
    which each periodic check (of jobs, of runs) stopped and will continue.
    """
    return f"{{{escape(namespace)}:s{number:x}}}:meta"
