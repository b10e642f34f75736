-- $1 the count that stands for "that many or more". Every count ends there, every age is the first
-- entry of an index: the price does not grow with the backlog.
WITH clock AS MATERIALIZED (
    SELECT clock_timestamp() AS now
),
due AS (
    SELECT
    FROM lease CROSS JOIN LATERAL (
        (
            -- Nobody has looked at it since it was added or its timing edited.
            SELECT FROM schedule
            WHERE schedule.partition = lease.partition
              AND deleted_at IS NULL AND enabled AND NOT ended AND fault IS NULL
              AND next_at IS NULL
            LIMIT $1
        )
        UNION ALL
        (
            SELECT FROM schedule
            WHERE schedule.partition = lease.partition
              AND deleted_at IS NULL AND enabled AND NOT ended AND fault IS NULL
              AND next_at <= (SELECT now FROM clock)
            LIMIT $1
        )
    ) AS own
    LIMIT $1
),
latest AS (
    SELECT min(own.next_at) AS next_at
    FROM lease CROSS JOIN LATERAL (
        SELECT next_at FROM schedule
        WHERE schedule.partition = lease.partition
          AND deleted_at IS NULL AND enabled AND NOT ended AND fault IS NULL
          AND next_at <= (SELECT now FROM clock)
        ORDER BY next_at NULLS FIRST
        LIMIT 1
    ) AS own
),
letter AS (
    SELECT execution_id FROM dead_letter WHERE resolved_at IS NULL LIMIT $1
)
SELECT clock.now,
       (SELECT count(*) FROM due) AS due,
       coalesce((SELECT extract(epoch FROM clock.now - next_at) * 1000000 FROM latest), 0)::bigint
           AS overdue_us,
       (SELECT count(*) FROM (SELECT FROM outbox LIMIT $1) AS waiting) AS outbox,
       coalesce((SELECT extract(epoch FROM clock.now - created_at) * 1000000
                 FROM outbox ORDER BY id LIMIT 1), 0)::bigint AS outbox_oldest_us,
       (SELECT count(*) FROM letter WHERE execution_id IS NULL) AS dead_messages,
       (SELECT count(*) FROM letter WHERE execution_id IS NOT NULL) AS dead_executions,
       (SELECT count(*) FROM (
            (SELECT FROM execution WHERE state = 'unknown' AND escalated_at IS NULL LIMIT $1)
            UNION ALL
            (SELECT FROM execution WHERE state = 'unknown' AND escalated_at IS NOT NULL LIMIT $1)
        ) AS unknown) AS unknown
FROM clock
