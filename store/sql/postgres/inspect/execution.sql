SELECT execution.id, execution.fire_id, execution.operation_id, execution.schedule_id,
       execution.schedule_version, execution.trigger, execution.job, execution.queue,
       execution.priority, execution.key, execution.shard_index, execution.shard_total,
       execution.state, execution.reason, execution.attempts_exhausted, execution.last_refusal,
       execution.attempt, execution.max_attempts, execution.generation, execution.session_id,
       execution.dispatch_no, execution.scheduled_at, execution.created_at,
       execution.available_at, execution.dispatched_at, execution.claimed_at,
       execution.started_at, execution.attempt_ended_at, execution.deadline_at,
       execution.start_deadline_at, execution.cancel_requested_at, execution.ended_at,
       execution.error, execution.traceparent, execution.retry_of, execution.cancel_lost, execution.escalated_at, execution.held,
       execution.checkpoint_at, octet_length(execution.checkpoint) AS checkpoint_size,
       execution.output, execution.output_type,
       fire.held_behind, fire.released_at, fire.cancel_requested_at AS replaced_at,
       (SELECT schedule.name FROM schedule WHERE schedule.id = execution.schedule_id) AS schedule,
       (SELECT session.ended_at FROM session
        WHERE session.id = execution.session_id) AS session_ended_at,
       -- The fire that was held until this one had stopped: the next one that was held.
       (SELECT later.id FROM fire AS later
        WHERE later.schedule_id = execution.schedule_id
          AND later.scheduled_at > fire.scheduled_at
          AND later.held_behind IS NOT NULL
          AND fire.cancel_requested_at IS NOT NULL
        ORDER BY later.scheduled_at, later.id
        LIMIT 1) AS replaced_by,
       (SELECT other.id FROM execution AS other
        WHERE other.operation_id = execution.operation_id
          AND other.retry_of IS NOT NULL
          AND other.state IN ('pending', 'running', 'retrying', 'unknown', 'succeeded')
          AND other.id <> execution.id) AS retried_as
FROM execution
LEFT JOIN fire ON fire.id = execution.fire_id
WHERE execution.id = $1
