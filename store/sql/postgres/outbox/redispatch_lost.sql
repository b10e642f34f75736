-- $1 stream, $2 limit. Rows with an outbox row are still to be sent and are left alone.
-- Whoever was first moved dispatched_at past seen_at: the second finds nothing.
WITH loss AS MATERIALIZED (
    SELECT seen_at FROM stream WHERE name = $1
),
target AS MATERIALIZED (
    SELECT execution.id
    FROM execution
    WHERE execution.state IN ('pending', 'retrying')
      AND execution.dispatched_at < (SELECT seen_at FROM loss)
      AND NOT EXISTS (SELECT FROM outbox WHERE outbox.execution_id = execution.id)
    ORDER BY execution.dispatched_at, execution.id
    LIMIT $2
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
