-- $1 limit. Three ranges, each with an index of its own (execution_start_deadline,
-- execution_exhausted, execution_cancelled); the conditions count again under the lock. A cancel
-- wins, as in a commit. `state || ''`: what was seen is found by its id (executions/claim.sql).
WITH seen AS MATERIALIZED (
    (
        SELECT id FROM execution
        WHERE state IN ('pending', 'retrying')
          AND start_deadline_at <= (SELECT clock_timestamp())
        ORDER BY start_deadline_at
        LIMIT $1
    )
    UNION
    (
        SELECT id FROM execution
        WHERE state IN ('pending', 'retrying') AND attempt >= max_attempts
        ORDER BY id
        LIMIT $1
    )
    UNION
    (
        SELECT id FROM execution
        WHERE state IN ('pending', 'retrying') AND cancel_requested_at IS NOT NULL
        ORDER BY cancel_requested_at
        LIMIT $1
    )
),
target AS MATERIALIZED (
    SELECT execution.id
    FROM seen
    JOIN execution ON execution.id = seen.id
    WHERE execution.state || '' IN ('pending', 'retrying')
      AND (
          execution.cancel_requested_at IS NOT NULL
          OR execution.attempt >= execution.max_attempts
          OR execution.start_deadline_at <= clock_timestamp()
      )
    ORDER BY execution.id
    LIMIT $1
    FOR NO KEY UPDATE OF execution SKIP LOCKED
),
locked AS MATERIALIZED (
    SELECT target.id, clock_timestamp() AS now FROM target
)
UPDATE execution
SET state = CASE
        WHEN execution.cancel_requested_at IS NOT NULL THEN 'cancelled'
        WHEN execution.attempt >= execution.max_attempts THEN 'failed'
        WHEN execution.last_refusal = 'no_handler' THEN 'failed'
        ELSE 'expired' END,
    -- Without an attempt left the reason of the last one stands.
    reason = CASE
        WHEN execution.cancel_requested_at IS NOT NULL THEN 'cancelled'
        WHEN execution.attempt >= execution.max_attempts THEN execution.reason
        WHEN execution.last_refusal = 'no_handler' THEN 'no_handler' END,
    attempts_exhausted = execution.cancel_requested_at IS NULL
        AND execution.attempt >= execution.max_attempts,
    ended_at = locked.now
FROM locked
WHERE execution.id = locked.id
RETURNING execution.job, execution.state, execution.reason
