-- $1 most fires, and most executions.
--
-- Each execution gets the request as request_cancel.sql would give it, but what is unknown is not ended
-- by it: its worker may still be at it, and whoever replaces it would run beside it. It goes on as one
-- that was asked to stop: a late result, a probe or an operator ends it. No lock is waited for: a
-- user's transaction may hold a row for long, and the fire's row is one that planning needs. A fire of
-- which another holds an execution, or which has more than fit, is not done before a later round.
WITH target AS MATERIALIZED (
    SELECT id FROM fire
    WHERE cancel_requested_at IS NOT NULL AND cancel_applied_at IS NULL
    ORDER BY cancel_requested_at, id
    LIMIT $1
    FOR NO KEY UPDATE SKIP LOCKED
),
asked AS MATERIALIZED (
    SELECT execution.id, execution.state
    FROM target
    JOIN execution ON execution.fire_id = target.id
    WHERE execution.state IN ('pending', 'retrying')
       OR execution.state IN ('running', 'unknown') AND execution.cancel_requested_at IS NULL
    ORDER BY execution.id
    LIMIT $1
    FOR NO KEY UPDATE OF execution SKIP LOCKED
),
locked AS MATERIALIZED (
    SELECT asked.*, asked.state IN ('pending', 'retrying') AS ends, clock_timestamp() AS now FROM asked
),
requested AS (
    UPDATE execution
    SET cancel_requested_at = coalesce(execution.cancel_requested_at, locked.now),
        state               = CASE WHEN locked.ends THEN 'cancelled' ELSE execution.state END,
        reason              = CASE WHEN locked.ends THEN 'cancelled' ELSE execution.reason END,
        ended_at            = CASE WHEN locked.ends THEN locked.now END
    FROM locked
    WHERE execution.id = locked.id
    RETURNING execution.id, locked.ends
),
applied AS (
    UPDATE fire
    SET cancel_applied_at = clock_timestamp()
    FROM target
    WHERE fire.id = target.id
      AND (
          SELECT true FROM execution
          WHERE execution.fire_id = target.id
            AND (execution.state IN ('pending', 'retrying')
                 OR execution.state IN ('running', 'unknown')
                    AND execution.cancel_requested_at IS NULL)
            AND execution.id NOT IN (SELECT locked.id FROM locked)
          LIMIT 1
      ) IS NULL
    RETURNING fire.id
)
SELECT (SELECT count(*) FROM applied) AS fires,
       (SELECT count(*) FROM requested) AS executions,
       (SELECT count(*) FROM requested WHERE ends) AS ended
