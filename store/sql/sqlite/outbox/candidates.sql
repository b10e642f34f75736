-- ?1 now, ?2 paused lanes as a JSON array of [queue, priority], ?3 limit
-- Differs: no SKIP LOCKED; under the write lock no other relay is inside its claim.
-- `current` = the execution still waits for this very dispatch.
SELECT o.id AS outbox_id, o.queue AS lane_queue, o.priority AS lane_priority,
    o.dispatch_no AS outbox_dispatch_no, l.id AS ledger_id,
    (e.state IN ('pending', 'retrying') AND e.dispatch_no = o.dispatch_no
        AND e.dispatched_at IS NOT NULL) IS TRUE AS current,
    e.job, e.fire_id, o.execution_id, e.shard_index, e.shard_total, e.schedule_version,
    e.scheduled_at, e.start_deadline_at, e.timeout_ms, e.traceparent, e.tracestate
FROM outbox o CROSS JOIN ledger l LEFT JOIN execution e ON e.id = o.execution_id
WHERE (o.leased_until IS NULL OR o.leased_until <= ?1)
    AND NOT EXISTS (SELECT 1 FROM json_each(?2) paused
        WHERE paused.value ->> 0 = o.queue AND paused.value ->> 1 = o.priority)
ORDER BY o.id LIMIT ?3
