-- Purpose: what every room stands on: machine states, the tag index, hints between processes.

-- The latest time seen, by the host's clock and by the clock that is never set (of which start of the host), in µs.
CREATE TABLE holdfast_clock (
    one    INTEGER PRIMARY KEY CHECK (one = 1),
    now    INTEGER NOT NULL,
    steady INTEGER NOT NULL,
    boot   TEXT    NOT NULL
);

INSERT INTO holdfast_clock VALUES (1, 0, 0, '');

CREATE TABLE holdfast_state (
    space      TEXT    NOT NULL,
    room       TEXT    NOT NULL,
    name       TEXT    NOT NULL,
    doc        BLOB    NOT NULL,
    keep_until INTEGER NOT NULL,
    PRIMARY KEY (space, room, name)
) WITHOUT ROWID;

CREATE INDEX holdfast_state_sweep ON holdfast_state (keep_until);

CREATE TABLE holdfast_tag (
    space      TEXT    NOT NULL,
    room       TEXT    NOT NULL,
    tag        TEXT    NOT NULL,
    name       TEXT    NOT NULL,
    keep_until INTEGER NOT NULL,
    PRIMARY KEY (space, room, tag, name)
) WITHOUT ROWID;

CREATE INDEX holdfast_tag_sweep ON holdfast_tag (keep_until);

CREATE TABLE holdfast_hint (
    id      INTEGER PRIMARY KEY AUTOINCREMENT,
    origin  TEXT    NOT NULL,
    channel TEXT    NOT NULL,
    payload TEXT    NOT NULL,
    at      INTEGER NOT NULL
);
