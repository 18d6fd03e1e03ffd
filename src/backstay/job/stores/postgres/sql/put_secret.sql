-- Purpose: store a secret of the namespace, unless there is one with this name.
-- Parameters: space, name, value.
-- Returns: the stored value. The update changes nothing; without it, a statement that meets the row of a concurrent
-- transaction would return no row.
INSERT INTO backstay_secret (space, name, value) VALUES (%(space)s, %(name)s, %(value)b)
ON CONFLICT (space, name) DO UPDATE SET value = backstay_secret.value
RETURNING value
