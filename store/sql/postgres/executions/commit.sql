-- Parallel arrays, as bound in commit.rs. A row counts only under its own claim_id and
-- generation, while it runs or is unknown; everything else is answered by refused.sql, and so is
-- what says of an unknown one no more than that: its handler has not stopped. `late` = it was
-- unknown already: its attempt had ended before.
WITH target AS MATERIALIZED (
    SELECT execution.id, result.generation, execution.claimed_at, execution.attempt, execution.max_attempts,
           execution.on_lost, execution.cancel_requested_at IS NOT NULL AS cancel, result.outcome, result.reason,
           result.error, result.output, result.output_type, result.delay_us,
           result.started_ago_us, result.stopped, execution.state = 'unknown' AS late
    FROM unnest(
        $1::uuid[], $2::uuid[], $3::bigint[], $4::text[], $5::text[], $6::text[], $7::bytea[],
        $8::text[], $9::bigint[], $10::bigint[], $11::boolean[]
    ) AS result (
        execution_id, claim_id, generation, outcome, reason, error, output,
        output_type, delay_us, started_ago_us, stopped
    )
    JOIN execution
        ON execution.id = result.execution_id
        AND execution.claim_id = result.claim_id
        AND execution.generation = result.generation
    WHERE execution.state = 'running' OR execution.state = 'unknown' AND result.stopped
    ORDER BY execution.id
    FOR NO KEY UPDATE OF execution
),
locked AS MATERIALIZED (
    SELECT target.*, clock_timestamp() AS now FROM target
),
judged AS MATERIALIZED (
    SELECT locked.*,
           CASE
               WHEN outcome = 'complete' THEN 'succeeded'
               WHEN outcome = 'fail' THEN 'failed'
               WHEN outcome = 'cancel' THEN 'cancelled'
               WHEN NOT stopped AND on_lost = 'unknown' THEN 'unknown'
               WHEN cancel THEN 'cancelled'
               WHEN outcome = 'retry' AND attempt >= max_attempts THEN 'failed'
               ELSE 'retrying'
           END AS next,
           outcome IN ('snooze', 'release', 'overloaded') AS gives_back
    FROM locked
),
ruled AS MATERIALIZED (
    SELECT judged.*,
           next = 'retrying' AS waits,
           next NOT IN ('retrying', 'unknown') AS ends,
           next = 'retrying' AND delay_us = 0 AS goes
    FROM judged
),
committed AS (
    UPDATE execution
    SET state              = ruled.next,
        reason             = CASE WHEN ruled.next = 'cancelled' THEN 'cancelled'
                                  ELSE ruled.reason END,
        error              = ruled.error,
        attempts_exhausted = ruled.next = 'failed' AND ruled.outcome = 'retry',
        last_refusal       = CASE WHEN ruled.outcome = 'overloaded' THEN 'executor_overloaded'
                                  ELSE execution.last_refusal END,
        checkpoint         = CASE WHEN ruled.next <> 'succeeded' THEN execution.checkpoint END,
        checkpoint_at      = CASE WHEN ruled.next <> 'succeeded' THEN execution.checkpoint_at END,
        cancel_lost        = ruled.cancel AND ruled.outcome = 'complete',
        attempt            = execution.attempt - CASE WHEN ruled.gives_back THEN 1 ELSE 0 END,
        available_at       = CASE WHEN ruled.waits
                                  THEN ruled.now + ruled.delay_us * interval '1 microsecond'
                                  WHEN ruled.next = 'unknown' THEN ruled.now
                                  ELSE execution.available_at END,
        dispatch_no        = execution.dispatch_no + CASE WHEN ruled.goes THEN 1 ELSE 0 END,
        dispatched_at      = CASE WHEN ruled.goes THEN ruled.now
                                  WHEN ruled.waits OR ruled.next = 'unknown' THEN NULL
                                  ELSE execution.dispatched_at END,
        -- greatest() skips nulls; null here means that the handler never started.
        started_at         = CASE WHEN ruled.started_ago_us IS NOT NULL THEN greatest(
                                 execution.claimed_at,
                                 ruled.now - ruled.started_ago_us * interval '1 microsecond'
                             ) END,
        attempt_ended_at   = ruled.now,
        left_by            = 'commit',
        left_late          = ruled.late,
        -- A late result of an unknown one ends its probe, and what its dispatches came to.
        lost_dispatches    = 0,
        unclaimed_dispatches = 0,
        probe_no           = 0,
        probe_id           = NULL,
        probe_session_id   = NULL,
        probe_claimed_at   = NULL,
        probe_deadline_at  = NULL,
        -- The generation that the result named: law 6 compares it with the row's.
        result_generation  = CASE WHEN ruled.ends THEN ruled.generation
                                  ELSE execution.result_generation END,
        output             = ruled.output,
        output_type        = ruled.output_type,
        ended_at           = CASE WHEN ruled.ends THEN ruled.now END
    FROM ruled
    WHERE execution.id = ruled.id
    RETURNING execution.id, execution.claim_id, execution.generation, execution.state,
              execution.dispatch_no, execution.queue,
              execution.priority, ruled.goes, ruled.late, ruled.now
),
dispatched AS (
    INSERT INTO outbox (execution_id, dispatch_no, queue, priority, created_at)
    SELECT id, dispatch_no, queue, priority, now FROM committed WHERE goes
    ORDER BY id
)
SELECT id, claim_id, generation, state, late FROM committed
