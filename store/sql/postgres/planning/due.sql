-- $1 limit. One row for the clock at least; the columns of a schedule are null when none is due.
-- Not computed yet and due are two ranges of one index (schedule_due), never a scan of all.
WITH clock AS MATERIALIZED (
    SELECT clock_timestamp() AS now
),
due AS (
    (
        SELECT * FROM schedule
        WHERE deleted_at IS NULL AND enabled AND NOT ended AND fault IS NULL
          AND next_at IS NULL
        ORDER BY next_at NULLS FIRST
        LIMIT $1
    )
    UNION ALL
    (
        SELECT * FROM schedule
        WHERE deleted_at IS NULL AND enabled AND NOT ended AND fault IS NULL
          AND next_at <= (SELECT now FROM clock)
        ORDER BY next_at NULLS FIRST
        LIMIT $1
    )
),
upcoming AS (
    SELECT next_at FROM schedule
    WHERE deleted_at IS NULL AND enabled AND NOT ended AND fault IS NULL
      AND next_at > (SELECT now FROM clock)
      AND next_at < 'infinity'
    ORDER BY next_at NULLS FIRST
    LIMIT 1
)
SELECT clock.now,
       (SELECT (extract(epoch FROM next_at - clock.now) * 1000000)::bigint FROM upcoming) AS next_in_us,
       due.id, due.name, due.job, due.queue, due.priority, due.kind, due.expr, due.zone,
       due.period_ms, due.anchor, due.at, due.shard_total, due.timeout_ms, due.max_attempts,
       due.start_deadline_ms, due.on_lost, due.grace_ms, due.origin, due.enabled, due.version,
       due.cursor, due.next_at, due.ended, due.fault, due.history_from, due.created_at,
       due.description, due.code_hash, due.edited_at
FROM clock LEFT JOIN due ON true
ORDER BY due.next_at NULLS FIRST, due.id
LIMIT $1
