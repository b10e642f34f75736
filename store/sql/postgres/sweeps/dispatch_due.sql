-- $1 limit. Longest due first, so that a flood of new work starves none. What is held waits for
-- its release.
WITH target AS MATERIALIZED (
    SELECT id FROM execution
    WHERE state IN ('pending', 'retrying')
      AND dispatched_at IS NULL
      AND NOT held
      AND available_at <= (SELECT clock_timestamp())
    ORDER BY available_at, id
    LIMIT $1
    FOR NO KEY UPDATE SKIP LOCKED
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
