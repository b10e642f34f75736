-- ?1 execution
SELECT e.id, e.fire_id, e.operation_id, e.job, e.queue, e.claim_id, e.generation, e.attempt,
    e.max_attempts, e.shard_index, e.shard_total, e.trigger, e.schedule_version, e.scheduled_at,
    e.deadline_at, e.timeout_ms, coalesce(e.payload, f.payload) AS payload, e.content_type,
    e.traceparent, e.tracestate, e.checkpoint, e.retry_first_ms, e.retry_cap_ms, e.policy_known,
    e.claimed_at - e.dispatched_at AS waited_ms
FROM execution e LEFT JOIN fire f ON f.id = e.fire_id
WHERE e.id = ?1
