-- $1 limit, $2 lease (µs), $3 queues and $4 priorities of the paused lanes.
--
-- Lane by lane, oldest first: the rows of a paused or a deep lane are not walked for the sake of
-- the others. The limit is dealt out to the lanes row by row (`quota`), without locks; then each
-- lane gives that many, past the rows that another relay is just leasing. With many lanes each
-- is asked for a few rows only, so that one claim looks at some 8 times its limit at most.
--
-- A lane is a range of outbox_lane, in the order of that index, instead of an equality in the order
-- of ids: for that the planner would rather walk the primary key, past the rows of all other
-- lanes, where the table has many pages.
--
-- Ids are looked up as arrays: of a list that it cannot estimate the planner would make a walk
-- over the whole table. `state || ''` keeps it from the indexes of all that waits, which it takes
-- for small where nothing waited when the table was last analysed.
--
-- A row is sent only for the dispatch its execution waits for; rows that were overtaken are
-- deleted instead. Leases may be lost in a crash: that costs a repeat, so the commit does not
-- wait for the disk (set_config is seen by the commit of this very statement).
WITH RECURSIVE relaxed AS MATERIALIZED (
    SELECT set_config('synchronous_commit', 'off', true) AS synchronous_commit
),
lane AS (
    (SELECT queue, priority FROM outbox ORDER BY queue, priority LIMIT 1)
    UNION ALL
    SELECT next.queue, next.priority
    FROM lane
    CROSS JOIN LATERAL (
        SELECT outbox.queue, outbox.priority
        FROM outbox
        WHERE (outbox.queue, outbox.priority) > (lane.queue, lane.priority)
        ORDER BY outbox.queue, outbox.priority
        LIMIT 1
    ) AS next
),
open_lane AS MATERIALIZED (
    SELECT queue, priority,
           least($1::bigint, greatest(8 * $1::bigint / count(*) OVER (), 1)) AS most
    FROM lane
    WHERE NOT EXISTS (
        SELECT FROM unnest($3::text[], $4::text[]) AS paused (queue, priority)
        WHERE paused.queue = lane.queue AND paused.priority = lane.priority
    )
),
available AS (
    SELECT open_lane.queue, open_lane.priority, waiting.id,
           row_number() OVER (
               PARTITION BY open_lane.queue, open_lane.priority ORDER BY waiting.id
           ) AS place
    FROM open_lane
    CROSS JOIN LATERAL (
        SELECT outbox.id
        FROM outbox
        WHERE (outbox.queue, outbox.priority) >= (open_lane.queue, open_lane.priority)
          AND (outbox.queue, outbox.priority) <= (open_lane.queue, open_lane.priority)
          AND (outbox.leased_until IS NULL OR outbox.leased_until <= clock_timestamp())
        ORDER BY outbox.queue, outbox.priority, outbox.id
        LIMIT open_lane.most
    ) AS waiting
),
quota AS MATERIALIZED (
    SELECT dealt.queue, dealt.priority, count(*) AS rows
    FROM (SELECT queue, priority FROM available ORDER BY place, id LIMIT $1) AS dealt
    GROUP BY dealt.queue, dealt.priority
),
picked AS MATERIALIZED (
    SELECT taken.id, taken.execution_id, taken.dispatch_no
    FROM quota
    CROSS JOIN LATERAL (
        SELECT outbox.id, outbox.execution_id, outbox.dispatch_no
        FROM outbox
        WHERE (SELECT synchronous_commit FROM relaxed) = 'off'
          AND (outbox.queue, outbox.priority) >= (quota.queue, quota.priority)
          AND (outbox.queue, outbox.priority) <= (quota.queue, quota.priority)
          AND (outbox.leased_until IS NULL OR outbox.leased_until <= clock_timestamp())
        ORDER BY outbox.queue, outbox.priority, outbox.id
        LIMIT quota.rows
        FOR NO KEY UPDATE OF outbox SKIP LOCKED
    ) AS taken
),
waiting AS MATERIALIZED (
    SELECT picked.id AS outbox_id, execution.id AS execution_id, execution.fire_id,
           execution.dispatch_no, execution.job, execution.queue, execution.priority,
           execution.shard_index, execution.shard_total, execution.schedule_version,
           execution.scheduled_at, execution.start_deadline_at, execution.timeout_ms,
           execution.traceparent, execution.tracestate, execution.dispatched_at
    FROM picked
    JOIN execution
        ON execution.id = picked.execution_id
        AND execution.id = ANY (ARRAY(SELECT execution_id FROM picked))
        AND execution.dispatch_no = picked.dispatch_no
        AND execution.dispatched_at IS NOT NULL
        AND (execution.state || '' IN ('pending', 'retrying')
             -- It waits for its probe.
             OR execution.state || '' = 'unknown' AND execution.escalated_at IS NULL)
),
overtaken AS (
    DELETE FROM outbox
    WHERE outbox.id = ANY (ARRAY(SELECT id FROM picked EXCEPT SELECT outbox_id FROM waiting))
    RETURNING outbox.id
),
leased AS (
    UPDATE outbox
    SET leased_until = clock_timestamp() + $2::bigint * interval '1 microsecond'
    FROM waiting
    WHERE outbox.id = waiting.outbox_id
      AND outbox.id = ANY (ARRAY(SELECT outbox_id FROM waiting))
    RETURNING waiting.*
)
SELECT (SELECT count(*) FROM overtaken) AS overtaken,
       (extract(epoch FROM clock_timestamp() - leased.dispatched_at) * 1000000)::bigint AS waited_us,
       leased.*
FROM (VALUES (1)) AS one
LEFT JOIN leased ON true
ORDER BY leased.outbox_id
