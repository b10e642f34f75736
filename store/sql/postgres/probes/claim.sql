-- $1 execution ids (distinct), $2 dispatch_nos, $3 probe ids, $4 timeouts (µs), $5 session: one row
-- for each ask, in their order.
--
-- A probe has a claim of its own: generation, claim_id and session of the attempt that was lost
-- stay, so that its late result is still known. Only the row's own dispatch leads to one. A probe
-- that is claimed under its id already is answered again: its reply was lost.
WITH owner AS MATERIALIZED (
    SELECT id FROM session WHERE id = $5 AND state = 'live'
),
ask AS MATERIALIZED (
    SELECT * FROM unnest($1::uuid[], $2::integer[], $3::uuid[], $4::bigint[])
        WITH ORDINALITY AS ask (execution_id, dispatch_no, probe_id, timeout_us, ord)
),
target AS MATERIALIZED (
    SELECT execution.id, ask.probe_id, ask.timeout_us
    FROM ask
    JOIN execution ON execution.id = ask.execution_id
    CROSS JOIN owner
    WHERE execution.state = 'unknown'
      AND execution.escalated_at IS NULL
      AND execution.dispatched_at IS NOT NULL
      AND execution.dispatch_no = ask.dispatch_no
      AND (
          execution.probe_id IS NULL
          OR execution.probe_id <> ask.probe_id
              AND execution.probe_deadline_at <= clock_timestamp()
      )
    ORDER BY execution.id
    FOR NO KEY UPDATE OF execution SKIP LOCKED
),
locked AS MATERIALIZED (
    SELECT target.*, clock_timestamp() AS now FROM target
),
claimed AS (
    UPDATE execution
    SET probe_no          = execution.probe_no + 1,
        probe_id          = locked.probe_id,
        probe_session_id  = $5,
        probe_claimed_at  = locked.now,
        probe_deadline_at = locked.now + interval '2 seconds'
                            + locked.timeout_us * interval '1 microsecond',
        last_refusal      = NULL,
        defer_count       = 0,
        lost_dispatches   = 0, -- a worker has answered
        unclaimed_dispatches = 0
    FROM locked
    WHERE execution.id = locked.id
    RETURNING execution.*
),
held AS (
    SELECT * FROM claimed
    UNION ALL
    SELECT execution.*
    FROM ask
    JOIN execution ON execution.id = ask.execution_id AND execution.probe_id = ask.probe_id
    WHERE execution.state = 'unknown'
)
SELECT EXISTS (SELECT FROM owner) AS live,
       held.id, held.fire_id, held.operation_id, held.job, held.queue, held.shard_index,
       held.shard_total, held.trigger, held.scheduled_at, held.generation, held.attempt,
       held.reason, held.error, held.attempt_ended_at, held.probe_id, held.probe_no,
       held.content_type, held.traceparent, held.tracestate,
       coalesce(held.payload, fire.payload) AS payload
FROM ask
LEFT JOIN held ON held.id = ask.execution_id
LEFT JOIN fire ON fire.id = held.fire_id AND held.payload IS NULL
ORDER BY ask.ord
