-- ?1 execution, ?2 shard_index, ?3 now, ?4 fire. The payload stays with the fire.
-- What is held is dispatched when it is let go; it is due only then, at its start deadline at the latest.
-- A fire that made up for missed ones has its whole time to start from now on.
INSERT INTO execution (id, fire_id, shard_index, shard_total, operation_id, schedule_id,
    schedule_version, trigger, job, queue, priority, content_type, traceparent, tracestate,
    timeout_ms, max_attempts, on_lost, scheduled_at, start_deadline_ms, start_deadline_at, created_at,
    state, available_at, dispatch_no, dispatched_at, held, retry_first_ms, retry_cap_ms)
SELECT ?1, id, ?2, shard_total, ?1, schedule_id, schedule_version, trigger, job, queue, priority,
    content_type, traceparent, tracestate, timeout_ms, max_attempts, on_lost, scheduled_at,
    start_deadline_ms, starts + start_deadline_ms, ?3, 'pending',
    CASE WHEN held THEN starts + start_deadline_ms ELSE scheduled_at END, NOT held,
    CASE WHEN NOT held THEN ?3 END, held, retry_first_ms, retry_cap_ms
FROM (
    SELECT f.id, f.shard_total, f.schedule_id, f.schedule_version, f.trigger, f.content_type,
        f.traceparent, f.tracestate, f.scheduled_at, f.held_behind IS NOT NULL AS held, s.job, s.queue,
        s.priority, s.timeout_ms, s.max_attempts, s.on_lost, s.start_deadline_ms, s.retry_first_ms,
        s.retry_cap_ms,
        CASE WHEN ?3 <= f.scheduled_at + s.grace_ms THEN f.scheduled_at ELSE ?3 END AS starts
    FROM fire f JOIN schedule s ON s.id = f.schedule_id WHERE f.id = ?4)
WHERE true
ON CONFLICT DO NOTHING
