-- Purpose: how many may still come to work that was announced: one row for each announcement, for a minute.

CREATE TABLE backstay_hint_counter (
    hint       TEXT    PRIMARY KEY,
    remaining  INTEGER NOT NULL,
    keep_until INTEGER NOT NULL
) WITHOUT ROWID;

CREATE INDEX backstay_hint_counter_sweep ON backstay_hint_counter (keep_until);
