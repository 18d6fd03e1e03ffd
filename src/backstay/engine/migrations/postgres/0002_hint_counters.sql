-- Purpose: how many may still come to work that was announced: one row for each announcement, for a minute.

CREATE TABLE backstay_hint_counter (
    hint       text   PRIMARY KEY,
    remaining  bigint NOT NULL,
    keep_until bigint NOT NULL
);

CREATE INDEX backstay_hint_counter_sweep ON backstay_hint_counter (keep_until);
