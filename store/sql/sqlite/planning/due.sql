-- ?1 now, ?2 limit
-- The terms of the partial index `schedule_due` stand here word for word. Not computed yet, due and
-- no instant at all (a hand's text) are three ranges of it, never a scan of all.
SELECT * FROM (
    SELECT rowid AS row, id, name, job, queue, priority, kind, expr, zone, period_ms, anchor, at,
        shard_total, timeout_ms, max_attempts, start_deadline_ms, on_lost, grace_ms, origin,
        enabled, version, cursor, next_at, ended, fault, history_from, created_at, description,
        code_hash, edited_at
    FROM schedule
    WHERE deleted_at IS NULL AND enabled AND NOT ended AND fault IS NULL AND next_at IS NULL
    LIMIT ?2)
UNION ALL
SELECT * FROM (
    SELECT rowid AS row, id, name, job, queue, priority, kind, expr, zone, period_ms, anchor, at,
        shard_total, timeout_ms, max_attempts, start_deadline_ms, on_lost, grace_ms, origin,
        enabled, version, cursor, next_at, ended, fault, history_from, created_at, description,
        code_hash, edited_at
    FROM schedule
    WHERE deleted_at IS NULL AND enabled AND NOT ended AND fault IS NULL AND next_at <= ?1
    ORDER BY next_at LIMIT ?2)
UNION ALL
SELECT * FROM (
    SELECT rowid AS row, id, name, job, queue, priority, kind, expr, zone, period_ms, anchor, at,
        shard_total, timeout_ms, max_attempts, start_deadline_ms, on_lost, grace_ms, origin,
        enabled, version, cursor, next_at, ended, fault, history_from, created_at, description,
        code_hash, edited_at
    FROM schedule
    WHERE deleted_at IS NULL AND enabled AND NOT ended AND fault IS NULL AND next_at >= ''
    LIMIT ?2)
ORDER BY next_at, id LIMIT ?2
