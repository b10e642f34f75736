-- ?1 execution, ?2 shard_index, ?3 now, ?4 fire. The payload stays with the fire.
-- A fire that made up for missed ones has its whole time to start from now on.
INSERT INTO execution (id, fire_id, shard_index, shard_total, operation_id, schedule_id,
    schedule_version, trigger, job, queue, priority, content_type, traceparent, tracestate,
    timeout_ms, max_attempts, on_lost, scheduled_at, start_deadline_at, created_at, state,
    available_at, dispatch_no, dispatched_at)
SELECT ?1, f.id, ?2, f.shard_total, ?1, s.id, f.schedule_version, f.trigger, s.job, s.queue,
    s.priority, f.content_type, f.traceparent, f.tracestate, s.timeout_ms, s.max_attempts,
    s.on_lost, f.scheduled_at, CASE WHEN ?3 <= f.scheduled_at + s.grace_ms THEN f.scheduled_at ELSE ?3 END
        + s.start_deadline_ms,
    ?3, 'pending', f.scheduled_at, 1, ?3
FROM fire f JOIN schedule s ON s.id = f.schedule_id WHERE f.id = ?4
ON CONFLICT DO NOTHING
