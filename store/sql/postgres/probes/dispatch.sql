-- $1 time after the loss (µs), $2 limit. Longest due first.
WITH target AS MATERIALIZED (
    SELECT id FROM execution
    WHERE state = 'unknown'
      AND escalated_at IS NULL
      AND dispatched_at IS NULL
      AND available_at <= (SELECT clock_timestamp())
      AND attempt_ended_at <= (SELECT clock_timestamp()) - $1::bigint * interval '1 microsecond'
    ORDER BY available_at, id
    LIMIT $2
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
