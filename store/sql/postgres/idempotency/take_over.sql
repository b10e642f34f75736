-- $1 key, $2 token, $3 lease (µs)
-- The row is locked before it is judged: of many that take over one wins. It is not waited for: the
-- transaction that marks the key as completed may be open for long. The generation counts on over
-- takeovers and releases.
WITH target AS MATERIALIZED (
    SELECT key FROM idempotency
    WHERE key = $1
      AND (
          state = 'released'
          OR state = 'in_progress' AND token <> $2 AND expires_at <= clock_timestamp()
      )
    FOR NO KEY UPDATE SKIP LOCKED
)
UPDATE idempotency
SET state       = 'in_progress',
    generation  = idempotency.generation + 1,
    token       = $2,
    acquired_at = clock_timestamp(),
    expires_at  = clock_timestamp() + $3::bigint * interval '1 microsecond',
    result      = NULL,
    settled_at  = NULL
FROM target
WHERE idempotency.key = target.key
RETURNING idempotency.generation
