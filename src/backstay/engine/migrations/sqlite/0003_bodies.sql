-- Purpose: what is kept beside a record: large, and no business of the machine's.

ALTER TABLE backstay_state ADD COLUMN body BLOB;
