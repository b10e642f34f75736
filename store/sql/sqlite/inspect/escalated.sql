-- ?1 state, ?2 job, ?3 queue, ?4 fire (null = any), ?5 limit, ?6 only those of
-- whose operation no retry goes on or has succeeded. What is unknown and waits for an operator, in
-- the order in which it came to wait.
SELECT id, fire_id, operation_id, schedule_id, schedule_version, trigger, job, queue, priority,
    key, shard_index, shard_total, state, reason, attempts_exhausted, last_refusal, attempt,
    max_attempts, generation, session_id, dispatch_no, scheduled_at, created_at, available_at,
    dispatched_at, claimed_at, started_at, attempt_ended_at, deadline_at, start_deadline_at,
    cancel_requested_at, ended_at, error, traceparent,
    retry_of, cancel_lost, escalated_at, held, checkpoint_at, length(checkpoint) AS checkpoint_size
FROM execution
WHERE state = 'unknown' AND escalated_at IS NOT NULL
    AND (?1 IS NULL OR state = ?1) AND (?2 IS NULL OR job = ?2) AND (?3 IS NULL OR queue = ?3)
    AND (?4 IS NULL OR fire_id = ?4)
    AND (NOT ?6 OR NOT EXISTS (
        SELECT 1 FROM execution other
        WHERE other.operation_id = execution.operation_id AND other.retry_of IS NOT NULL
            AND other.state IN ('pending', 'running', 'retrying', 'unknown', 'succeeded')))
ORDER BY escalated_at, id LIMIT ?5
