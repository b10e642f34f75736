-- $1 age (µs), $2 limit
WITH target AS MATERIALIZED (
    SELECT key FROM idempotency
    WHERE coalesce(settled_at, expires_at)
        <= (SELECT clock_timestamp()) - $1::bigint * interval '1 microsecond'
    ORDER BY coalesce(settled_at, expires_at)
    LIMIT $2
    FOR UPDATE SKIP LOCKED
)
DELETE FROM idempotency
USING target
WHERE idempotency.key = target.key
