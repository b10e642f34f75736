-- ?1 execution
SELECT e.id, e.fire_id, e.operation_id, e.job, e.queue, e.claim_id, e.generation, e.attempt,
    e.max_attempts, e.shard_index, e.shard_total, e.trigger, e.schedule_version, e.scheduled_at,
    e.deadline_at, e.timeout_ms, coalesce(e.payload, f.payload) AS payload, e.content_type,
    e.traceparent, e.tracestate
FROM execution e LEFT JOIN fire f ON f.id = e.fire_id
WHERE e.id = ?1
