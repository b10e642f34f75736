-- $1 limit, $2 lease (µs), $3 queues and $4 priorities of the paused lanes.
--
-- A row is sent only for the dispatch its execution waits for; rows that were overtaken are
-- deleted instead. Leases may be lost in a crash: that costs a repeat, so the commit does not
-- wait for the disk (set_config is seen by the commit of this very statement).
WITH relaxed AS MATERIALIZED (
    SELECT set_config('synchronous_commit', 'off', true) AS synchronous_commit
),
picked AS MATERIALIZED (
    SELECT outbox.id, outbox.execution_id, outbox.dispatch_no
    FROM outbox
    WHERE (SELECT synchronous_commit FROM relaxed) = 'off'
      AND (outbox.leased_until IS NULL OR outbox.leased_until <= clock_timestamp())
      AND NOT EXISTS (
          SELECT FROM unnest($3::text[], $4::text[]) AS paused (queue, priority)
          WHERE paused.queue = outbox.queue AND paused.priority = outbox.priority
      )
    ORDER BY outbox.id
    LIMIT $1
    FOR NO KEY UPDATE OF outbox SKIP LOCKED
),
waiting AS MATERIALIZED (
    SELECT picked.id AS outbox_id, execution.id AS execution_id, execution.fire_id,
           execution.dispatch_no, execution.job, execution.queue, execution.priority,
           execution.shard_index, execution.shard_total, execution.schedule_version,
           execution.scheduled_at, execution.start_deadline_at, execution.timeout_ms,
           execution.traceparent, execution.tracestate
    FROM picked
    JOIN execution
        ON execution.id = picked.execution_id
        AND execution.dispatch_no = picked.dispatch_no
        AND execution.dispatched_at IS NOT NULL
        AND execution.state IN ('pending', 'retrying')
),
overtaken AS (
    DELETE FROM outbox
    USING picked
    WHERE outbox.id = picked.id
      AND NOT EXISTS (SELECT FROM waiting WHERE waiting.outbox_id = picked.id)
    RETURNING outbox.id
),
leased AS (
    UPDATE outbox
    SET leased_until = clock_timestamp() + $2::bigint * interval '1 microsecond'
    FROM waiting
    WHERE outbox.id = waiting.outbox_id
    RETURNING waiting.*
)
SELECT (SELECT count(*) FROM overtaken) AS overtaken, leased.*
FROM (VALUES (1)) AS one
LEFT JOIN leased ON true
ORDER BY leased.outbox_id
