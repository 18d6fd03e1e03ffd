length(set_config('backstay.claimed', (
-- include: _moved.sql
            ), true) || set_config('backstay.waited', (
                SELECT coalesce(array_agg(id)::text, '') FROM claimed WHERE flags & 64 <> 0), true)
            || set_config('backstay.upstream', (
                SELECT coalesce(array_agg(DISTINCT chain)::text, '')
                FROM (SELECT DISTINCT upstream FROM claimed WHERE flags & 64 <> 0 AND upstream <> '') own
                CROSS JOIN LATERAL unnest(string_to_array(own.upstream, chr(31))) chain), true))
