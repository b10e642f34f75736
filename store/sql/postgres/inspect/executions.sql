-- $1 state, $2 job, $3 queue, $4 fire: null = any; $5 limit, $6 only
-- those of whose operation no retry goes on or has succeeded. Newest id first.
SELECT execution.id, execution.fire_id, execution.operation_id, execution.schedule_id,
       execution.schedule_version, execution.trigger, execution.job, execution.queue,
       execution.priority, execution.key, execution.shard_index, execution.shard_total,
       execution.state, execution.reason, execution.attempts_exhausted, execution.last_refusal,
       execution.attempt, execution.max_attempts, execution.generation, execution.session_id,
       execution.dispatch_no, execution.scheduled_at, execution.created_at,
       execution.available_at, execution.dispatched_at, execution.claimed_at,
       execution.started_at, execution.attempt_ended_at, execution.deadline_at,
       execution.start_deadline_at, execution.cancel_requested_at, execution.ended_at,
       execution.error, execution.traceparent, execution.retry_of,
       execution.cancel_lost, execution.escalated_at, execution.held, execution.checkpoint_at,
       octet_length(execution.checkpoint) AS checkpoint_size
FROM execution
WHERE ($1::text IS NULL OR execution.state = $1)
  AND ($2::text IS NULL OR execution.job = $2)
  AND ($3::text IS NULL OR execution.queue = $3)
  AND ($4::uuid IS NULL OR execution.fire_id = $4)
  AND (NOT $6 OR NOT EXISTS (
      SELECT FROM execution AS other
      WHERE other.operation_id = execution.operation_id
        AND other.retry_of IS NOT NULL
        AND other.state IN ('pending', 'running', 'retrying', 'unknown', 'succeeded')))
ORDER BY execution.id DESC
LIMIT $5
