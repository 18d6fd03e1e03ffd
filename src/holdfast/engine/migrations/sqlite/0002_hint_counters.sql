-- Purpose: how many may still come to work that was announced: one row for each announcement, for a minute.

CREATE TABLE holdfast_hint_counter (
    hint       TEXT    PRIMARY KEY,
    remaining  INTEGER NOT NULL,
    keep_until INTEGER NOT NULL
) WITHOUT ROWID;

CREATE INDEX holdfast_hint_counter_sweep ON holdfast_hint_counter (keep_until);
