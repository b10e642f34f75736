-- ?1 names (JSON)
SELECT s.id, s.name, s.job, s.queue, s.priority, s.kind, s.expr, s.zone, s.period_ms, s.anchor,
    s.at, s.shard_total, s.timeout_ms, s.max_attempts, s.start_deadline_ms, s.on_lost, s.grace_ms,
    s.misfire, s.catch_up_max, s.catch_up_window_ms, s.overlap, s.retry_first_ms, s.retry_cap_ms,
    s.origin, s.enabled, s.version, s.partition, s.cursor, s.next_at, s.ended, s.fault, s.history_from,
    s.created_at, s.description, s.code_hash, s.edited_at, s.payload, s.content_type,
    t.kind AS recorded_kind, t.expr AS recorded_expr, t.zone AS recorded_zone,
    t.period_ms AS recorded_period_ms, t.anchor AS recorded_anchor, t.at AS recorded_at
FROM schedule s
LEFT JOIN schedule_timing t ON t.schedule_id = s.id
    AND t.version = (SELECT max(version) FROM schedule_timing WHERE schedule_id = s.id)
WHERE s.name IN (SELECT value FROM json_each(?1)) AND s.deleted_at IS NULL
ORDER BY s.name
