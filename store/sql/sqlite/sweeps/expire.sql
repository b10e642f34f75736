-- ?1 now, ?2 limit. Three ranges, each with an index of its own (execution_start_deadline,
-- execution_exhausted, execution_cancelled). A cancel wins, as in a commit. Without an attempt
-- left the reason of the last one stands. INDEXED BY: the planner cannot know how few they are.
UPDATE execution SET ended_at = ?1,
    state = CASE WHEN cancel_requested_at IS NOT NULL THEN 'cancelled'
        WHEN attempt >= max_attempts OR last_refusal = 'no_handler' THEN 'failed'
        ELSE 'expired' END,
    reason = CASE WHEN cancel_requested_at IS NOT NULL THEN 'cancelled'
        WHEN attempt >= max_attempts THEN reason
        WHEN last_refusal = 'no_handler' THEN 'no_handler' END,
    attempts_exhausted = cancel_requested_at IS NULL AND attempt >= max_attempts
WHERE id IN (
    SELECT id FROM (
        SELECT id FROM execution
        WHERE state IN ('pending', 'retrying') AND start_deadline_at <= ?1
        ORDER BY start_deadline_at LIMIT ?2)
    UNION
    SELECT id FROM (
        SELECT id FROM execution INDEXED BY execution_exhausted
        WHERE state IN ('pending', 'retrying') AND attempt >= max_attempts LIMIT ?2)
    UNION
    SELECT id FROM (
        SELECT id FROM execution
        WHERE state IN ('pending', 'retrying') AND cancel_requested_at IS NOT NULL
        ORDER BY cancel_requested_at LIMIT ?2)
    LIMIT ?2)
RETURNING job, state, reason
