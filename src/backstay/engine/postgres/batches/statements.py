"""The statements of a batch of machine commands (`batch.py`)."""

from __future__ import annotations

from backstay.engine.base import Micros

#: The shortest and the longest rounding step of `keep_until`, powers of two in µs: 4 seconds and 72 minutes.
SHORTEST_STEP, LONGEST_STEP = 1 << 22, 1 << 32

#: Inserts a row for each name that has none. Names with a row are filtered out before the insert, because ON CONFLICT
#: would wait for a transaction that is changing that row. The row of a name that gets no record is kept for a minute:
#: its operation may only have been deferred.
INSERT = b"""
INSERT INTO backstay_state (space, room, name, keep_until)
SELECT %(space)s, wanted.room, wanted.name,
    coalesce(%(now)s::bigint, (extract(epoch FROM statement_timestamp()) * 1000000)::bigint) + 60000000
FROM unnest(%(rooms)b, %(names)b) AS wanted (room, name)
WHERE NOT EXISTS (
    SELECT FROM backstay_state state
    WHERE state.space = %(space)s AND state.room = wanted.room AND state.name = wanted.name)
ON CONFLICT DO NOTHING
"""
READ = b"""
SELECT state.room, state.name, state.doc, state.body
FROM unnest(%(rooms)b, %(names)b) AS wanted (room, name)
JOIN backstay_state state ON state.space = %(space)s AND state.room = wanted.room AND state.name = wanted.name
"""
LOCK = READ + b"ORDER BY state.room, state.name FOR UPDATE OF state"
SKIP = LOCK + b" SKIP LOCKED"
#: Sent as a separate statement after the one that locks rows: that one may wait, and a time that was read before the
#: wait would be outdated.
CLOCK = b"SELECT (extract(epoch FROM clock_timestamp()) * 1000000)::bigint"
#: Writes changed records. `keep_until` is the time until which a record must be kept. The new value is already rounded
#: up (`round_keep_until`), so that most updates change neither the column nor its index. If it is earlier than the
#: stored value by at most one rounding step, the stored value stays: otherwise, just before the end of a step, each
#: acquire of a lock would move the value to the next step, and each release would move it back.
WRITE = b"""
UPDATE backstay_state state SET doc = new.doc, keep_until = CASE
    WHEN state.doc IS NOT NULL AND state.keep_until - new.keep_until BETWEEN 0 AND new.step THEN state.keep_until
    ELSE new.keep_until END
FROM unnest(%(rooms)b, %(names)b, %(docs)b, %(until)b, %(steps)b) AS new (room, name, doc, keep_until, step)
WHERE state.space = %(space)s AND state.room = new.room AND state.name = new.name
"""
#: Writes changed bodies. A body is a large value that is stored beside a record. The statement is separate from WRITE,
#: because most records have no body, and a body that did not change is not sent again.
BODY = b"""
UPDATE backstay_state state SET body = new.body FROM unnest(%(rooms)b, %(names)b, %(bodies)b) AS new (room, name, body)
WHERE state.space = %(space)s AND state.room = new.room AND state.name = new.name
"""
DELETE = b"""
DELETE FROM backstay_state state USING unnest(%(rooms)b, %(names)b) AS gone (room, name)
WHERE state.space = %(space)s AND state.room = gone.room AND state.name = gone.name
"""
TAG = b"""
INSERT INTO backstay_tag AS known (space, room, tag, name, keep_until)
SELECT %(space)s, t.room, t.tag, t.name, max(t.keep_until)
FROM unnest(%(rooms)b, %(tags)b, %(names)b, %(until)b) AS t (room, tag, name, keep_until)
GROUP BY t.room, t.tag, t.name ORDER BY t.room, t.tag, t.name
ON CONFLICT (space, room, tag, name) DO UPDATE SET keep_until = greatest(known.keep_until, excluded.keep_until)
"""
TAGGED = b"""
SELECT name FROM backstay_tag
WHERE space = %(space)s AND room = %(room)s AND tag = %(tag)b AND keep_until > %(now)s ORDER BY name
"""
UNTAG = b"""
DELETE FROM backstay_tag WHERE space = %(space)s AND room = %(room)s AND tag = %(tag)b AND name = ANY(%(names)b)
"""
SCAN_FROM = b"""
SELECT name FROM backstay_state
WHERE space = %(space)s AND room = %(room)s AND keep_until >= %(now)s AND doc IS NOT NULL AND name >= %(first)b
"""
SCAN = SCAN_FROM + b" AND name < %(end)b"
ORDER = b" ORDER BY name"


def round_keep_until(keep_until: Micros, now: Micros) -> tuple[Micros, Micros]:
    """Round the time until which a record is kept up to a multiple of a step, and return it with the step. The step is
    about an eighth of the time left, so a record of a second is not kept for an hour.
    """
    eighth = (keep_until - now) >> 3
    step = (
        SHORTEST_STEP
        if eighth < SHORTEST_STEP
        else LONGEST_STEP
        if eighth >= LONGEST_STEP
        else 1 << eighth.bit_length()
    )
    return -(-keep_until // step) * step, step
