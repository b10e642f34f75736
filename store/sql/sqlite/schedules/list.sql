SELECT id, name, job, queue, priority, kind, expr, zone, period_ms, anchor, at, shard_total,
    timeout_ms, max_attempts, start_deadline_ms, on_lost, grace_ms, origin,
    misfire, catch_up_max, catch_up_window_ms, overlap, retry_first_ms, retry_cap_ms, enabled, version,
    partition, cursor, next_at, ended, fault, history_from, created_at,
       description, code_hash, edited_at
FROM schedule
WHERE deleted_at IS NULL
ORDER BY name
