-- Purpose: a worker is there.
-- Parameters: space, id, doc, now.
WITH
-- include: _clock.sql
INSERT INTO backstay_job_worker (space, id, registered, beat, doc)
SELECT %(space)s, %(id)s, clock.now, clock.now, %(doc)b FROM clock
ON CONFLICT (space, id) DO UPDATE SET beat = excluded.beat, doc = excluded.doc
