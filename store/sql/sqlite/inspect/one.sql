-- ?1 execution. Replaced by: the next fire that was held, until this one had stopped.
SELECT e.id, e.fire_id, e.operation_id, e.schedule_id, e.schedule_version, e.trigger, e.job, e.queue, e.priority,
    e.key, e.shard_index, e.shard_total, e.state, e.reason, e.attempts_exhausted, e.last_refusal, e.attempt,
    e.max_attempts, e.generation, e.session_id, e.dispatch_no, e.scheduled_at, e.created_at, e.available_at,
    e.dispatched_at, e.claimed_at, e.started_at, e.attempt_ended_at, e.deadline_at, e.start_deadline_at,
    e.cancel_requested_at, e.ended_at, e.error, e.traceparent,
    e.retry_of, e.cancel_lost, e.escalated_at, e.held, e.checkpoint_at, length(e.checkpoint) AS checkpoint_size,
    e.output, e.output_type, f.held_behind, f.released_at, f.cancel_requested_at AS replaced_at,
    (SELECT s.name FROM schedule s WHERE s.id = e.schedule_id) AS schedule,
    (SELECT s.ended_at FROM session s WHERE s.id = e.session_id) AS session_ended_at,
    (SELECT later.id FROM fire later
     WHERE later.schedule_id = e.schedule_id AND later.scheduled_at > f.scheduled_at
        AND later.held_behind IS NOT NULL AND f.cancel_requested_at IS NOT NULL
     ORDER BY later.scheduled_at, later.id LIMIT 1) AS replaced_by,
    (SELECT other.id FROM execution other
     WHERE other.operation_id = e.operation_id AND other.retry_of IS NOT NULL
        AND other.state IN ('pending', 'running', 'retrying', 'unknown', 'succeeded')
        AND other.id <> e.id) AS retried_as
FROM execution e LEFT JOIN fire f ON f.id = e.fire_id
WHERE e.id = ?1
