-- $1 dead letter of a message, $2 fire, $3 execution, $4 content type, $5 traceparent,
-- $6 timeout (ms), $7 attempts, $8 start deadline (ms), $9 on_lost, $10 and $11 first delay and cap of
-- retries (ms): those of its job are pinned by the first worker that has a handler. Of two at once the second finds it resolved.
WITH letter AS MATERIALIZED (
    SELECT id, job, queue, payload FROM dead_letter
    WHERE id = $1 AND resolved_at IS NULL
    FOR NO KEY UPDATE
),
locked AS MATERIALIZED (
    SELECT letter.*, clock_timestamp() AS now FROM letter
),
queued AS (
    INSERT INTO queue (name, created_at)
    SELECT queue, now FROM locked
    ON CONFLICT (name) DO NOTHING
),
inserted AS (
    INSERT INTO execution (
        id, fire_id, shard_index, shard_total, operation_id, trigger, job, queue, priority,
        payload, content_type, traceparent, timeout_ms, max_attempts, on_lost, scheduled_at,
        start_deadline_at, created_at, state, available_at, dispatch_no, dispatched_at,
        retry_first_ms, retry_cap_ms, policy_known
    )
    SELECT $3, $2, 0, 1, $3, 'retry', job, queue, 'normal', payload, $4, $5, $6, $7, $9, now,
           now + $8::bigint * interval '1 millisecond', now, 'pending', now, 1, now,
           $10, $11, false
    FROM locked
    RETURNING id, queue, priority, dispatched_at
),
dispatched AS (
    INSERT INTO outbox (execution_id, dispatch_no, queue, priority, created_at)
    SELECT id, 1, queue, priority, dispatched_at FROM inserted
)
UPDATE dead_letter
SET resolved_at = inserted.dispatched_at, resolution = 'replayed', replayed_as = inserted.id
FROM inserted
WHERE dead_letter.id = $1
