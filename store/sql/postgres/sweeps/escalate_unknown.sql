-- $1 age (µs), $2 limit
WITH target AS MATERIALIZED (
    SELECT id FROM execution
    WHERE state = 'unknown'
      AND escalated_at IS NULL
      AND attempt_ended_at <= (SELECT clock_timestamp()) - $1::bigint * interval '1 microsecond'
    ORDER BY id
    LIMIT $2
    FOR NO KEY UPDATE SKIP LOCKED
)
UPDATE execution SET escalated_at = clock_timestamp()
FROM target
WHERE execution.id = target.id
