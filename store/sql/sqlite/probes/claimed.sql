-- ?1 execution
SELECT e.id, e.fire_id, e.operation_id, e.job, e.queue, e.shard_index, e.shard_total, e.trigger,
    e.scheduled_at, e.generation, e.attempt, e.reason, e.error, e.attempt_ended_at, e.probe_id,
    e.probe_no, coalesce(e.payload, f.payload) AS payload, e.content_type, e.traceparent,
    e.tracestate
FROM execution e LEFT JOIN fire f ON f.id = e.fire_id
WHERE e.id = ?1
