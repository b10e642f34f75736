-- $1 execution ids, $2 dispatch_nos. A repeat finds the dispatch taken back and changes nothing.
-- `state || ''`: rows are found by their ids (claim.sql).
WITH target AS MATERIALIZED (
    SELECT execution.id
    FROM unnest($1::uuid[], $2::integer[]) AS deferral (execution_id, dispatch_no)
    JOIN execution ON execution.id = deferral.execution_id
    WHERE (
          execution.state || '' IN ('pending', 'retrying')
          -- The dispatch of a probe, which needs a handler's worker as well.
          OR execution.state || '' = 'unknown' AND execution.probe_id IS NULL
              AND execution.escalated_at IS NULL
      )
      AND execution.dispatched_at IS NOT NULL
      AND execution.dispatch_no = deferral.dispatch_no
    ORDER BY execution.id
    FOR NO KEY UPDATE OF execution
)
UPDATE execution
SET defer_count   = execution.defer_count + 1,
    last_refusal  = 'no_handler',
    available_at  = clock_timestamp()
                    + least(60, power(2, least(execution.defer_count, 6))) * interval '1 second',
    dispatched_at = NULL,
    -- A worker has answered.
    lost_dispatches = 0,
    unclaimed_dispatches = 0
FROM target
WHERE execution.id = target.id
