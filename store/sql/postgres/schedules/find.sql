-- $1 names
SELECT schedule.id, schedule.name, schedule.job, schedule.queue, schedule.priority, schedule.kind,
       schedule.expr, schedule.zone, schedule.period_ms, schedule.anchor, schedule.at,
       schedule.shard_total, schedule.timeout_ms, schedule.max_attempts,
       schedule.start_deadline_ms, schedule.on_lost, schedule.grace_ms, schedule.origin,
       schedule.misfire, schedule.catch_up_max, schedule.catch_up_window_ms, schedule.overlap,
       schedule.retry_first_ms, schedule.retry_cap_ms,
       schedule.enabled, schedule.version, schedule.partition, schedule.cursor,
       schedule.next_at, schedule.ended,
       schedule.fault, schedule.history_from, schedule.created_at, schedule.description,
       schedule.code_hash, schedule.edited_at, schedule.payload, schedule.content_type,
       recorded.kind AS recorded_kind, recorded.expr AS recorded_expr,
       recorded.zone AS recorded_zone, recorded.period_ms AS recorded_period_ms,
       recorded.anchor AS recorded_anchor, recorded.at AS recorded_at,
       date_trunc('milliseconds', clock.now) AS now
FROM (SELECT clock_timestamp() AS now) AS clock
CROSS JOIN schedule
LEFT JOIN LATERAL (
    SELECT kind, expr, zone, period_ms, anchor, at FROM schedule_timing
    WHERE schedule_timing.schedule_id = schedule.id
    ORDER BY schedule_timing.version DESC
    LIMIT 1
) AS recorded ON true
WHERE schedule.name = ANY($1) AND schedule.deleted_at IS NULL
ORDER BY schedule.name COLLATE "C"
