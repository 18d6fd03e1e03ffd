-- Purpose: somebody may no longer use the server.
-- Parameters: space, id.
-- Returns: a row, if there was one.
DELETE FROM backstay_token WHERE space = %(space)s AND id = %(id)s RETURNING id
