-- ?1 execution
SELECT id, fire_id, operation_id, schedule_id, schedule_version, trigger, job, queue, priority,
    key, shard_index, shard_total, state, reason, attempts_exhausted, last_refusal, attempt,
    max_attempts, generation, session_id, dispatch_no, scheduled_at, created_at, available_at,
    dispatched_at, claimed_at, started_at, attempt_ended_at, deadline_at, start_deadline_at,
    cancel_requested_at, ended_at, error, traceparent,
    retry_of, cancel_lost,
    output, output_type,
    (SELECT other.id FROM execution other
     WHERE other.operation_id = execution.operation_id AND other.retry_of IS NOT NULL
        AND other.state IN ('pending', 'running', 'retrying', 'unknown', 'succeeded')
        AND other.id <> execution.id) AS retried_as
FROM execution WHERE id = ?1
