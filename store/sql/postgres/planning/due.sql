-- $1 partitions, $2 limit. One row for the clock at least; the columns of a schedule are null when
-- none is due. Not computed yet and due are, for each partition, two ranges of one index
-- (schedule_due), never a scan of all. Only what is left of all partitions together is read in full.
WITH clock AS MATERIALIZED (
    SELECT clock_timestamp() AS now
),
led AS MATERIALIZED (
    SELECT DISTINCT unnest($1::integer[]) AS partition
),
near AS MATERIALIZED (
    (
        SELECT own.id, own.next_at
        FROM led CROSS JOIN LATERAL (
            SELECT id, next_at FROM schedule
            WHERE schedule.partition = led.partition
              AND deleted_at IS NULL AND enabled AND NOT ended AND fault IS NULL
              AND next_at IS NULL
            LIMIT $2
        ) AS own
        LIMIT $2
    )
    UNION ALL
    (
        SELECT own.id, own.next_at
        FROM led CROSS JOIN LATERAL (
            SELECT id, next_at FROM schedule
            WHERE schedule.partition = led.partition
              AND deleted_at IS NULL AND enabled AND NOT ended AND fault IS NULL
              AND next_at <= (SELECT now FROM clock)
            ORDER BY next_at NULLS FIRST
            LIMIT $2
        ) AS own
        ORDER BY own.next_at NULLS FIRST
        LIMIT $2
    )
),
first AS MATERIALIZED (
    SELECT id FROM near
    ORDER BY next_at NULLS FIRST, id
    LIMIT $2
),
due AS (
    SELECT schedule.* FROM first JOIN schedule ON schedule.id = first.id
),
upcoming AS (
    SELECT min(own.next_at) AS next_at
    FROM led CROSS JOIN LATERAL (
        SELECT next_at FROM schedule
        WHERE schedule.partition = led.partition
          AND deleted_at IS NULL AND enabled AND NOT ended AND fault IS NULL
          AND next_at > (SELECT now FROM clock)
          AND next_at < 'infinity'
        ORDER BY next_at NULLS FIRST
        LIMIT 1
    ) AS own
)
SELECT clock.now,
       (SELECT (extract(epoch FROM next_at - clock.now) * 1000000)::bigint FROM upcoming) AS next_in_us,
       due.id, due.name, due.job, due.queue, due.priority, due.kind, due.expr, due.zone,
       due.period_ms, due.anchor, due.at, due.shard_total, due.timeout_ms, due.max_attempts,
       due.start_deadline_ms, due.on_lost, due.grace_ms, due.misfire, due.catch_up_max,
       due.catch_up_window_ms, due.overlap, due.retry_first_ms, due.retry_cap_ms, due.origin, due.enabled, due.version,
       due.partition, due.cursor, due.next_at, due.ended, due.fault, due.history_from, due.created_at,
       due.description, due.code_hash, due.edited_at
FROM clock LEFT JOIN due ON true
ORDER BY due.next_at NULLS FIRST, due.id
