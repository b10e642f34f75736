-- ?1 now, ?2 limit, ?3 partition
-- The terms of the partial index `schedule_due` stand here word for word. Not computed yet, due and
-- no instant at all (a hand's text) are three ranges of it, never a scan of all. Only what is left of
-- the three together is read in full.
SELECT s.rowid AS row, s.id, s.name, s.job, s.queue, s.priority, s.kind, s.expr, s.zone, s.period_ms,
    s.anchor, s.at, s.shard_total, s.timeout_ms, s.max_attempts, s.start_deadline_ms, s.on_lost,
    s.grace_ms, s.origin, s.misfire, s.catch_up_max, s.catch_up_window_ms, s.overlap,
    s.retry_first_ms, s.retry_cap_ms, s.enabled, s.version, s.partition, s.cursor, s.next_at, s.ended,
    s.fault, s.history_from, s.created_at, s.description, s.code_hash, s.edited_at
FROM (
    SELECT * FROM (
        SELECT rowid AS row, next_at FROM schedule
        WHERE partition = ?3
            AND deleted_at IS NULL AND enabled AND NOT ended AND fault IS NULL AND next_at IS NULL
        LIMIT ?2)
    UNION ALL
    SELECT * FROM (
        SELECT rowid AS row, next_at FROM schedule
        WHERE partition = ?3
            AND deleted_at IS NULL AND enabled AND NOT ended AND fault IS NULL AND next_at <= ?1
        ORDER BY next_at LIMIT ?2)
    UNION ALL
    SELECT * FROM (
        SELECT rowid AS row, next_at FROM schedule
        WHERE partition = ?3
            AND deleted_at IS NULL AND enabled AND NOT ended AND fault IS NULL AND next_at >= ''
        LIMIT ?2)
    ORDER BY next_at LIMIT ?2) AS near
CROSS JOIN schedule s ON s.rowid = near.row
ORDER BY s.next_at, s.id
