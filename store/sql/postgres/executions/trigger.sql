-- $1 schedule id, $2 its version, $3 fire id, $4 traceparent, $5 tracestate,
-- $6 execution ids in the order of the shards
WITH target AS MATERIALIZED (
    SELECT schedule.*, date_trunc('milliseconds', clock_timestamp()) AS now
    FROM schedule
    WHERE id = $1 AND version = $2 AND deleted_at IS NULL
),
fired AS (
    INSERT INTO fire (
        id, schedule_id, schedule_version, trigger, scheduled_at, shard_total, payload,
        content_type, traceparent, tracestate, partition, planned_at
    )
    SELECT $3, id, version, 'manual', now, shard_total, payload, content_type, $4,
           nullif($5, ''), partition, now
    FROM target
    ON CONFLICT (id) DO NOTHING
    RETURNING id
),
executed AS (
    INSERT INTO execution (
        id, fire_id, shard_index, shard_total, operation_id, schedule_id, schedule_version,
        trigger, job, queue, priority, content_type, traceparent, tracestate, timeout_ms,
        max_attempts, on_lost, scheduled_at, start_deadline_at, created_at, state, available_at,
        dispatch_no, dispatched_at, retry_first_ms, retry_cap_ms
    )
    SELECT shard.id, fired.id, shard.ord - 1, target.shard_total, shard.id, target.id,
           target.version, 'manual', target.job, target.queue, target.priority,
           target.content_type, $4, nullif($5, ''), target.timeout_ms, target.max_attempts,
           target.on_lost, target.now,
           target.now + target.start_deadline_ms * interval '1 millisecond',
           target.now, 'pending', target.now, 1, target.now,
           target.retry_first_ms, target.retry_cap_ms
    FROM unnest($6::uuid[]) WITH ORDINALITY AS shard (id, ord), fired, target
    ORDER BY shard.id
    RETURNING id, queue, priority, dispatched_at
),
dispatched AS (
    INSERT INTO outbox (execution_id, dispatch_no, queue, priority, created_at)
    SELECT id, 1, queue, priority, dispatched_at FROM executed
    ORDER BY id
)
SELECT id FROM fired
