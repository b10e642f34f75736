-- ?1 the new execution, ?2 its fire, ?3 traceparent, ?4 tracestate, ?5 now, ?6 the old execution
INSERT INTO execution (id, fire_id, shard_index, shard_total, operation_id, schedule_id,
    schedule_version, trigger, job, queue, priority, payload, content_type, traceparent,
    tracestate, timeout_ms, max_attempts, on_lost, scheduled_at, start_deadline_ms,
    start_deadline_at, created_at, state, available_at, retry_of, retry_first_ms, retry_cap_ms,
    policy_known, own_timeout)
SELECT ?1, ?2, e.shard_index, e.shard_total, e.operation_id, e.schedule_id, e.schedule_version,
    'retry', e.job, e.queue, e.priority, coalesce(e.payload, f.payload), e.content_type, ?3, ?4,
    e.timeout_ms, e.max_attempts, e.on_lost, ?5, e.start_deadline_ms,
    ?5 + coalesce(e.start_deadline_ms, e.start_deadline_at - e.scheduled_at), ?5,
    'pending', ?5, e.id, e.retry_first_ms, e.retry_cap_ms, e.policy_known,
    e.own_timeout
FROM execution e LEFT JOIN fire f ON f.id = e.fire_id AND e.payload IS NULL
WHERE e.id = ?6
