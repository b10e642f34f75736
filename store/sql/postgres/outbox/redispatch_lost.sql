-- $1 stream, $2 limit. Rows with an outbox row are still to be sent and are left alone.
-- Whoever was first moved dispatched_at past seen_at: the second finds nothing. `state || ''`: the
-- candidates are found by their ids (executions/claim.sql).
WITH loss AS MATERIALIZED (
    SELECT seen_at FROM stream WHERE name = $1
),
candidate AS MATERIALIZED (
    SELECT lost.id, lost.dispatched_at
    FROM queue
    CROSS JOIN unnest(ARRAY['high', 'normal', 'low']) AS lane (priority)
    CROSS JOIN LATERAL (
        SELECT execution.id, execution.dispatched_at
        FROM execution
        WHERE execution.queue = queue.name AND execution.priority = lane.priority
          AND execution.state IN ('pending', 'retrying')
          AND execution.dispatched_at < (SELECT seen_at FROM loss)
          AND NOT EXISTS (SELECT FROM outbox WHERE outbox.execution_id = execution.id)
        ORDER BY execution.dispatched_at
        LIMIT $2
    ) AS lost
    UNION ALL
    SELECT execution.id, execution.dispatched_at
    FROM execution
    WHERE execution.state = 'unknown' AND execution.escalated_at IS NULL
      AND execution.probe_id IS NULL -- a probe that runs has had its message
      AND execution.dispatched_at < (SELECT seen_at FROM loss)
      AND NOT EXISTS (SELECT FROM outbox WHERE outbox.execution_id = execution.id)
),
target AS MATERIALIZED (
    SELECT execution.id
    FROM execution
    WHERE execution.id = ANY (
              ARRAY(SELECT id FROM candidate ORDER BY dispatched_at, id LIMIT $2)
          )
      AND (execution.state || '' IN ('pending', 'retrying')
           OR execution.state || '' = 'unknown' AND execution.escalated_at IS NULL
              AND execution.probe_id IS NULL)
      AND execution.dispatched_at < (SELECT seen_at FROM loss)
      AND NOT EXISTS (SELECT FROM outbox WHERE outbox.execution_id = execution.id)
    ORDER BY execution.id
    FOR NO KEY UPDATE OF execution SKIP LOCKED
),
locked AS MATERIALIZED (
    SELECT target.id, clock_timestamp() AS now FROM target
),
dispatched AS (
    UPDATE execution
    SET dispatch_no = execution.dispatch_no + 1, dispatched_at = locked.now
    FROM locked
    WHERE execution.id = locked.id
    RETURNING execution.id, execution.dispatch_no, execution.queue, execution.priority, locked.now
)
INSERT INTO outbox (execution_id, dispatch_no, queue, priority, created_at)
SELECT id, dispatch_no, queue, priority, now FROM dispatched
ORDER BY id
