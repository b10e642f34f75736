-- $1 execution ids (distinct) and $2 their dispatch_nos, $3 unclaimed dispatches at which it
-- ends, $4 what its dead letter says. A repeat finds another dispatch_no and changes nothing.
--
-- It counts against the row only if a worker that serves it had free slots ever since before the
-- dispatch: a fleet that is busy or away leaves it as it was. What is unknown waits for a probe,
-- and its dispatches never count. `state || ''`: rows are found by their ids (executions/claim.sql).
WITH target AS MATERIALIZED (
    SELECT execution.id, execution.state, execution.queue, execution.job,
           execution.dispatched_at, execution.unclaimed_dispatches
    FROM unnest($1::uuid[], $2::integer[]) AS lost (id, dispatch_no)
    JOIN execution ON execution.id = lost.id
    WHERE execution.dispatch_no = lost.dispatch_no
      AND execution.dispatched_at IS NOT NULL
      AND (execution.state || '' IN ('pending', 'retrying')
           OR execution.state || '' = 'unknown' AND execution.escalated_at IS NULL
              AND execution.probe_id IS NULL)
      AND NOT EXISTS (SELECT FROM outbox WHERE outbox.execution_id = execution.id)
    ORDER BY execution.id
    FOR NO KEY UPDATE OF execution SKIP LOCKED
),
locked AS MATERIALIZED (
    SELECT target.id, target.state, clock_timestamp() AS now,
           target.unclaimed_dispatches + CASE WHEN target.state <> 'unknown' AND EXISTS (
               SELECT FROM session
               WHERE session.state = 'live' AND session.expires_at > clock_timestamp()
                 AND session.opened_at <= target.dispatched_at
                 AND session.free_since <= target.dispatched_at
                 AND session.queues::jsonb ? target.queue
                 AND session.jobs::jsonb ? target.job
           ) THEN 1 ELSE 0 END AS unclaimed
    FROM target
),
ended AS (
    UPDATE execution
    SET state = 'failed', reason = 'undeliverable', error = $4, ended_at = locked.now,
        unclaimed_dispatches = locked.unclaimed
    FROM locked
    WHERE execution.id = locked.id AND locked.state <> 'unknown' AND locked.unclaimed >= $3
    RETURNING execution.id, execution.job, execution.queue, execution.content_type,
              execution.dispatch_no, locked.now
),
letters AS (
    INSERT INTO dead_letter (
        job, key, queue, reason, detail, payload, content_type, execution_id, recorded_at
    )
    SELECT job, '~' || id || '.' || dispatch_no, queue, 'unclaimed', $4, ''::bytea, content_type,
           id, now
    FROM ended
    ON CONFLICT (job, key) DO NOTHING
),
dispatched AS (
    UPDATE execution
    SET dispatch_no          = execution.dispatch_no + 1,
        dispatched_at        = locked.now,
        lost_dispatches      = execution.lost_dispatches + 1,
        unclaimed_dispatches = locked.unclaimed
    FROM locked
    WHERE execution.id = locked.id AND (locked.state = 'unknown' OR locked.unclaimed < $3)
    RETURNING execution.id, execution.dispatch_no, execution.queue, execution.priority, locked.now
),
sent AS (
    INSERT INTO outbox (execution_id, dispatch_no, queue, priority, created_at)
    SELECT id, dispatch_no, queue, priority, now FROM dispatched
    ORDER BY id
    RETURNING id
)
SELECT (SELECT count(*) FROM sent) AS redispatched, (SELECT count(*) FROM ended) AS ended
