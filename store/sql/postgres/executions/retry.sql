-- $1 execution, $2 fire, $3 the new execution, $4 traceparent, $5 tracestate, $6 the dead letter
-- that is replayed by this (null = none).
--
-- The old row has ended, so nothing of it changes any more. Of two at once one meets the other's
-- row (execution_retry_once); retry_standing.sql says which.
WITH letter AS MATERIALIZED (
    SELECT id FROM dead_letter WHERE id = $6 AND resolved_at IS NULL
    FOR NO KEY UPDATE
),
old AS MATERIALIZED (
    SELECT execution.*, clock_timestamp() AS now
    FROM execution
    WHERE id = $1
      AND state IN ('failed', 'cancelled', 'expired')
      AND ($6::uuid IS NULL OR EXISTS (SELECT FROM letter))
),
inserted AS (
    INSERT INTO execution (
        id, fire_id, shard_index, shard_total, operation_id, schedule_id, schedule_version,
        trigger, job, queue, priority, payload, content_type, traceparent, tracestate, timeout_ms,
        max_attempts, on_lost, scheduled_at, start_deadline_ms, start_deadline_at, created_at, state,
        available_at, dispatch_no, dispatched_at, retry_of, retry_first_ms, retry_cap_ms,
        policy_known, own_timeout
    )
    SELECT $3, $2, old.shard_index, old.shard_total, old.operation_id, old.schedule_id,
           old.schedule_version, 'retry', old.job, old.queue, old.priority,
           coalesce(old.payload, fire.payload), old.content_type, $4, nullif($5, ''),
           old.timeout_ms, old.max_attempts, old.on_lost, old.now,
           old.start_deadline_ms,
           old.now + coalesce(
               old.start_deadline_ms * interval '1 millisecond',
               old.start_deadline_at - old.scheduled_at
           ),
           old.now, 'pending', old.now, 1,
           old.now, old.id, old.retry_first_ms, old.retry_cap_ms, old.policy_known, old.own_timeout
    FROM old
    LEFT JOIN fire ON fire.id = old.fire_id AND old.payload IS NULL
    ON CONFLICT DO NOTHING
    RETURNING id, queue, priority, dispatched_at
),
dispatched AS (
    INSERT INTO outbox (execution_id, dispatch_no, queue, priority, created_at)
    SELECT id, 1, queue, priority, dispatched_at FROM inserted
),
replayed AS (
    UPDATE dead_letter
    SET resolved_at = inserted.dispatched_at, resolution = 'replayed', replayed_as = inserted.id
    FROM inserted
    WHERE dead_letter.id = $6
)
SELECT id FROM inserted
