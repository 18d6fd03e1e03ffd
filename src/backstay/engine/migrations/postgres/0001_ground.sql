-- Purpose: what every room stands on: machine states and the tag index. Names are bytes: any text, in byte order.

-- `doc` is empty between the moment a name is first asked for and the end of that transaction. `keep_until` (µs) is
-- rounded up to whole hours: an index over it would otherwise change with every write and forbid cheap updates.
CREATE TABLE backstay_state (
    space      text   NOT NULL,
    room       text   NOT NULL,
    name       bytea  NOT NULL,
    doc        bytea,
    keep_until bigint NOT NULL DEFAULT 0,
    PRIMARY KEY (space, room, name)
) WITH (fillfactor = 60);

CREATE INDEX backstay_state_sweep ON backstay_state (keep_until);

CREATE TABLE backstay_tag (
    space      text   NOT NULL,
    room       text   NOT NULL,
    tag        bytea  NOT NULL,
    name       bytea  NOT NULL,
    keep_until bigint NOT NULL,
    PRIMARY KEY (space, room, tag, name)
);

CREATE INDEX backstay_tag_sweep ON backstay_tag (keep_until);
