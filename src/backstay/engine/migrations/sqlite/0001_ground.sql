-- Purpose: what every room stands on: machine states, the tag index, hints between processes.

-- The latest time seen, by the host's clock and by the clock that is never set (of which start of the host), in µs.
CREATE TABLE backstay_clock (
    one    INTEGER PRIMARY KEY CHECK (one = 1),
    now    INTEGER NOT NULL,
    steady INTEGER NOT NULL,
    boot   TEXT    NOT NULL
);

INSERT INTO backstay_clock VALUES (1, 0, 0, '');

CREATE TABLE backstay_state (
    space      TEXT    NOT NULL,
    room       TEXT    NOT NULL,
    name       TEXT    NOT NULL,
    doc        BLOB    NOT NULL,
    keep_until INTEGER NOT NULL,
    PRIMARY KEY (space, room, name)
) WITHOUT ROWID;

CREATE INDEX backstay_state_sweep ON backstay_state (keep_until);

CREATE TABLE backstay_tag (
    space      TEXT    NOT NULL,
    room       TEXT    NOT NULL,
    tag        TEXT    NOT NULL,
    name       TEXT    NOT NULL,
    keep_until INTEGER NOT NULL,
    PRIMARY KEY (space, room, tag, name)
) WITHOUT ROWID;

CREATE INDEX backstay_tag_sweep ON backstay_tag (keep_until);

CREATE TABLE backstay_hint (
    id      INTEGER PRIMARY KEY AUTOINCREMENT,
    origin  TEXT    NOT NULL,
    channel TEXT    NOT NULL,
    payload TEXT    NOT NULL,
    at      INTEGER NOT NULL
);
