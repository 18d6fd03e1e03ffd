moves AS MATERIALIZED (
    SELECT said[n][1] COLLATE "C" AS run, stage, said[n][2] AS kind, said[n][3] AS worker, said[n][4]::text[] AS ids,
        said[n][5]::integer[] AS attempts
    FROM (VALUES (1, current_setting('backstay.ended', true)), (2, current_setting('backstay.released', true)),
            (3, current_setting('backstay.claimed', true))) s (stage, text)
    CROSS JOIN LATERAL (SELECT nullif(nullif(text, ''), '{-}')::text[] AS said) a
    CROSS JOIN LATERAL generate_subscripts(said, 1) n
)
