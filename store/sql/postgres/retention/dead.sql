-- $1 retention (µs), $2 limit. Dead letters that a person looked after that long ago.
WITH target AS MATERIALIZED (
    SELECT id
    FROM dead_letter
    WHERE resolved_at IS NOT NULL
      AND resolved_at < (SELECT clock_timestamp()) - $1::bigint * interval '1 microsecond'
    ORDER BY resolved_at
    LIMIT $2
    FOR UPDATE SKIP LOCKED
)
DELETE FROM dead_letter USING target WHERE dead_letter.id = target.id
