-- $1 execution, $2 token (the probe's id, or the operator's own), $3 verdict, $4 note, $5 said_by,
-- $6 time after the loss from which a probe's "not done" counts (µs), $7 whether the worker says so
-- for want of a probe.
--
-- Whoever locks the row first decides: a late result of the claim, a probe or an operator. What was
-- decided here is taken from the claim as by a sweep: a later result of it is fenced and kept.
--
-- A worker without the probe says nothing while a live one of the queue has it (`elsewhere`): the
-- probe goes back uncounted, and no verdict is kept.
WITH target AS MATERIALIZED (
    SELECT id, generation, attempt, max_attempts, probe_no,
           cancel_requested_at IS NOT NULL AS cancel,
           $5 = 'operator'
               OR probe_claimed_at >= attempt_ended_at + $6::bigint * interval '1 microsecond'
                   -- A worker that is there and has said nothing is still at it.
                   AND NOT EXISTS (
                       SELECT FROM session
                       WHERE session.id = execution.session_id AND session.state = 'live'
                   )
               AS settled,
           $7 AND EXISTS (
               SELECT FROM session
               WHERE session.state = 'live'
                 AND session.queues::jsonb ? execution.queue
                 AND session.probes::jsonb ? execution.job
           ) AS elsewhere
    FROM execution
    WHERE id = $1
      AND state = 'unknown'
      AND ($5 = 'operator' OR probe_id = $2)
      -- A late repeat says nothing of an execution that is unknown once more.
      AND NOT EXISTS (SELECT FROM verdict WHERE token = $2)
    FOR NO KEY UPDATE
),
locked AS MATERIALIZED (
    SELECT target.*, clock_timestamp() AS now FROM target
),
ruled AS MATERIALIZED (
    SELECT locked.*,
           CASE
               WHEN $3 = 'done' THEN 'succeeded'
               WHEN $3 = 'abandon' THEN 'failed'
               WHEN $3 <> 'not_done' OR NOT settled THEN 'unknown'
               WHEN cancel THEN 'cancelled'
               WHEN attempt >= max_attempts THEN 'failed'
               ELSE 'retrying'
           END AS next
    FROM locked
),
decided AS (
    UPDATE execution
    SET state              = ruled.next,
        -- What ends or waits for want of a result keeps the reason of the loss.
        reason             = CASE ruled.next WHEN 'succeeded' THEN NULL
                                             WHEN 'cancelled' THEN 'cancelled'
                                             ELSE execution.reason END,
        error              = CASE WHEN ruled.next <> 'succeeded' THEN execution.error END,
        attempts_exhausted = ruled.next = 'failed' AND $3 = 'not_done',
        cancel_lost        = ruled.next = 'succeeded' AND ruled.cancel,
        checkpoint         = CASE WHEN ruled.next <> 'succeeded' THEN execution.checkpoint END,
        checkpoint_at      = CASE WHEN ruled.next <> 'succeeded' THEN execution.checkpoint_at END,
        available_at       = CASE ruled.next
            WHEN 'retrying' THEN ruled.now
            WHEN 'unknown' THEN ruled.now
                + least(60, 5 * power(2, least(greatest(ruled.probe_no, 1), 5) - 1))
                * interval '1 second'
            ELSE execution.available_at END,
        dispatch_no        = execution.dispatch_no
                             + CASE WHEN ruled.next = 'retrying' THEN 1 ELSE 0 END,
        dispatched_at      = CASE ruled.next WHEN 'retrying' THEN ruled.now
                                             WHEN 'unknown' THEN NULL
                                             ELSE execution.dispatched_at END,
        lost_dispatches    = CASE WHEN ruled.next = 'unknown' THEN execution.lost_dispatches
                                  ELSE 0 END,
        unclaimed_dispatches = CASE WHEN ruled.next = 'unknown'
                                    THEN execution.unclaimed_dispatches ELSE 0 END,
        left_by            = CASE WHEN ruled.next = 'unknown' THEN execution.left_by
                                  ELSE 'sweep' END,
        result_generation  = CASE WHEN ruled.next = 'succeeded' THEN ruled.generation
                                  ELSE execution.result_generation END,
        escalated_at       = CASE WHEN $3 = 'cannot_tell' AND NOT ruled.elsewhere
                                  THEN coalesce(execution.escalated_at, ruled.now)
                                  ELSE execution.escalated_at END,
        probe_no           = execution.probe_no - CASE WHEN ruled.elsewhere THEN 1 ELSE 0 END,
        probe_id           = NULL,
        probe_session_id   = NULL,
        probe_claimed_at   = NULL,
        probe_deadline_at  = NULL,
        ended_at           = CASE WHEN ruled.next IN ('succeeded', 'failed', 'cancelled')
                                  THEN ruled.now END
    FROM ruled
    WHERE execution.id = ruled.id
    RETURNING execution.id, execution.state, execution.dispatch_no, execution.queue,
              execution.priority, ruled.elsewhere
),
dispatched AS (
    INSERT INTO outbox (execution_id, dispatch_no, queue, priority, created_at)
    SELECT decided.id, decided.dispatch_no, decided.queue, decided.priority, ruled.now
    FROM decided, ruled
    WHERE decided.state = 'retrying'
),
recorded AS (
    INSERT INTO verdict (
        token, execution_id, generation, recorded_at, said_by, probe_no, verdict, note, became
    )
    SELECT $2, ruled.id, ruled.generation, ruled.now, $5,
           CASE WHEN $5 = 'probe' THEN ruled.probe_no END, $3, $4, ruled.next
    FROM ruled
    WHERE NOT ruled.elsewhere
)
SELECT state, elsewhere FROM decided
