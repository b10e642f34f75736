-- $1 execution ids (distinct), $2 dispatch_nos, $3 claim_ids, $4 session
--
-- One RUNNING witness per row, written before any user code runs. Rows that are locked are
-- left to whoever locked them. The session's row is read, not locked: a claim that races with
-- its loss is a running row of a lost session, and the sweep takes it over.
--
-- `state || ''` keeps the planner from the indexes of all that waits, which it takes for small
-- where nothing waited when the table was last analysed: rows are found by their ids.
WITH owner AS MATERIALIZED (
    SELECT id FROM session WHERE id = $4 AND state = 'live'
),
target AS MATERIALIZED (
    SELECT execution.id, execution.generation, execution.attempt, ask.claim_id,
           execution.claim_id AS old_claim_id, execution.session_id, execution.claimed_at,
           execution.started_at, execution.attempt_ended_at, execution.reason, execution.error,
           execution.left_by, execution.left_late
    FROM unnest($1::uuid[], $2::integer[], $3::uuid[]) AS ask (execution_id, dispatch_no, claim_id)
    JOIN execution ON execution.id = ask.execution_id
    CROSS JOIN owner
    WHERE execution.state || '' IN ('pending', 'retrying')
      AND NOT execution.held
      AND execution.cancel_requested_at IS NULL
      AND execution.attempt < execution.max_attempts
      AND execution.start_deadline_at > clock_timestamp()
      -- Its own dispatch says that it is due; one whose marker was cleared is an old copy.
      AND (
          execution.available_at <= clock_timestamp()
          OR execution.dispatched_at IS NOT NULL AND execution.dispatch_no = ask.dispatch_no
      )
    ORDER BY execution.id
    FOR NO KEY UPDATE OF execution SKIP LOCKED
),
locked AS MATERIALIZED (
    SELECT target.*, clock_timestamp() AS now FROM target
),
-- The attempt that this claim supersedes. What gave its charge back keeps the number it had.
superseded AS (
    INSERT INTO attempt (
        execution_id, generation, attempt, claim_id, session_id, claimed_at, started_at, ended_at,
        reason, error, left_by, left_late
    )
    SELECT id, generation,
           attempt + CASE WHEN reason IN ('snooze', 'release') THEN 1 ELSE 0 END,
           old_claim_id, session_id, claimed_at, started_at, attempt_ended_at, reason, error,
           left_by, left_late
    FROM locked
    WHERE generation > 0
    ON CONFLICT (execution_id, generation) DO NOTHING
),
claimed AS (
    UPDATE execution
    SET state            = 'running',
        reason           = NULL,
        error            = NULL,
        last_refusal     = NULL,
        defer_count      = 0,
        lost_dispatches  = 0,
        unclaimed_dispatches = 0,
        attempt          = execution.attempt + 1,
        generation       = execution.generation + 1,
        claim_id         = locked.claim_id,
        session_id       = $4,
        claimed_at       = locked.now,
        deadline_at      = locked.now + interval '2 seconds'
                           + execution.timeout_ms * interval '1 millisecond',
        started_at       = NULL,
        attempt_ended_at = NULL,
        left_by          = NULL,
        left_late        = false,
        escalated_at     = NULL -- of an earlier loss
    FROM locked
    WHERE execution.id = locked.id
    RETURNING execution.*
)
SELECT EXISTS (SELECT FROM owner) AS live,
       claimed.id, claimed.fire_id, claimed.operation_id, claimed.job, claimed.queue,
       claimed.claim_id, claimed.generation, claimed.attempt, claimed.max_attempts,
       claimed.shard_index, claimed.shard_total, claimed.trigger, claimed.schedule_version,
       claimed.scheduled_at, claimed.deadline_at, claimed.timeout_ms, claimed.content_type,
       claimed.retry_first_ms, claimed.retry_cap_ms, claimed.policy_known,
       (extract(epoch FROM claimed.claimed_at - claimed.dispatched_at) * 1000000)::bigint AS waited_us,
       claimed.traceparent, claimed.tracestate, claimed.checkpoint,
       coalesce(claimed.payload, fire.payload) AS payload
FROM (VALUES (1)) AS one
LEFT JOIN claimed ON true
LEFT JOIN fire ON fire.id = claimed.fire_id AND claimed.payload IS NULL
