-- $1 stream, $2 first wait and $3 longest (µs), $4 most per lane. The oldest of each lane.
-- What a lost stream held is the bulk re-dispatch's. A lane whose own outbox rows are that old
-- is behind: it sends what it has before anything is called lost.
WITH clock AS MATERIALIZED (
    SELECT clock_timestamp() AS now,
           clock_timestamp() - $2::bigint * interval '1 microsecond' AS due,
           coalesce((SELECT seen_at FROM stream WHERE name = $1), '-infinity') AS seen_at
),
lane AS MATERIALIZED (
    SELECT queue.name AS queue, named.priority
    FROM queue
    CROSS JOIN unnest(ARRAY['high', 'normal', 'low']) AS named (priority)
    WHERE coalesce(
        (SELECT created_at FROM outbox
         WHERE outbox.queue = queue.name AND outbox.priority = named.priority
         ORDER BY outbox.id LIMIT 1) >= (SELECT due FROM clock),
        true)
),
found AS (
    SELECT overdue.*
    FROM lane
    CROSS JOIN LATERAL (
        SELECT execution.id, execution.queue, execution.priority, execution.dispatch_no,
               execution.dispatched_at, execution.lost_dispatches
        FROM execution
        WHERE execution.queue = lane.queue AND execution.priority = lane.priority
          AND execution.state IN ('pending', 'retrying')
          AND execution.dispatched_at >= (SELECT seen_at FROM clock)
          AND execution.dispatched_at < (SELECT due FROM clock)
          AND execution.dispatched_at < (SELECT now FROM clock) - least(
              $3::bigint, $2::bigint * power(2, least(execution.lost_dispatches, 20))
          ) * interval '1 microsecond'
          AND NOT EXISTS (SELECT FROM outbox WHERE outbox.execution_id = execution.id)
        ORDER BY execution.dispatched_at
        LIMIT $4
    ) AS overdue
    UNION ALL
    (
        SELECT execution.id, execution.queue, execution.priority, execution.dispatch_no,
               execution.dispatched_at, execution.lost_dispatches
        FROM execution
        JOIN lane ON lane.queue = execution.queue AND lane.priority = execution.priority
        WHERE execution.state = 'unknown' AND execution.escalated_at IS NULL
          AND execution.probe_id IS NULL -- a probe that runs has had its message
          AND execution.dispatched_at >= (SELECT seen_at FROM clock)
          AND execution.dispatched_at < (SELECT due FROM clock)
          AND execution.dispatched_at < (SELECT now FROM clock) - least(
              $3::bigint, $2::bigint * power(2, least(execution.lost_dispatches, 20))
          ) * interval '1 microsecond'
          AND NOT EXISTS (SELECT FROM outbox WHERE outbox.execution_id = execution.id)
        ORDER BY execution.dispatched_at
        LIMIT $4
    )
)
SELECT id, queue, priority, dispatch_no, dispatched_at, lost_dispatches
FROM found
ORDER BY dispatched_at, id
