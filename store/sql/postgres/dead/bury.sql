-- $1 outbox row, $2 detail. A row that was overtaken is only dropped: its execution waits for
-- another dispatch, or for none. `state || ''`: it is found by its id (executions/claim.sql).
WITH gone AS (
    DELETE FROM outbox WHERE id = $1
    RETURNING execution_id, dispatch_no
),
target AS MATERIALIZED (
    SELECT execution.id, gone.dispatch_no
    FROM gone
    JOIN execution ON execution.id = gone.execution_id
    WHERE execution.state || '' IN ('pending', 'retrying')
      AND execution.dispatched_at IS NOT NULL
      AND execution.dispatch_no = gone.dispatch_no
    FOR NO KEY UPDATE OF execution
),
locked AS MATERIALIZED (
    SELECT target.*, clock_timestamp() AS now FROM target
),
ended AS (
    UPDATE execution
    SET state = 'failed', reason = 'undeliverable', error = $2, ended_at = locked.now
    FROM locked
    WHERE execution.id = locked.id
    RETURNING execution.id, execution.job, execution.queue, execution.content_type,
              locked.dispatch_no, locked.now
),
letters AS (
    INSERT INTO dead_letter (
        job, key, queue, reason, detail, payload, content_type, execution_id, recorded_at
    )
    SELECT job, '~' || id || '.' || dispatch_no, queue, 'undeliverable', $2, ''::bytea,
           content_type, id, now
    FROM ended
    ON CONFLICT (job, key) DO NOTHING
)
SELECT count(*) FROM gone
