-- $1 grace (µs), $2 limit.
--
-- What was seen is locked only while its generation is the one that was seen: a row that was
-- claimed again meanwhile may belong to a session too young for this statement's snapshot,
-- which must not count as missing. Two ranges, each with an index of its own (execution_running,
-- execution_deadline); what the first leaves over waits for the next round.
WITH seen AS MATERIALIZED (
    (
        SELECT execution.id, execution.generation, true AS worker_lost
        FROM execution
        WHERE execution.state = 'running'
          AND NOT EXISTS (
              SELECT FROM session
              WHERE session.id = execution.session_id AND session.state = 'live'
          )
        LIMIT $2
    )
    UNION ALL
    (
        SELECT execution.id, execution.generation, false
        FROM execution
        WHERE execution.state = 'running'
          AND execution.deadline_at
              <= (SELECT clock_timestamp()) - $1::bigint * interval '1 microsecond'
          AND EXISTS (
              SELECT FROM session
              WHERE session.id = execution.session_id AND session.state = 'live'
          )
        ORDER BY execution.deadline_at
        LIMIT $2
    )
    LIMIT $2
),
target AS MATERIALIZED (
    SELECT execution.id, seen.worker_lost, execution.on_lost, execution.attempt,
           execution.max_attempts, execution.cancel_requested_at IS NOT NULL AS cancel
    FROM seen
    JOIN execution ON execution.id = seen.id AND execution.generation = seen.generation
    WHERE execution.state = 'running'
    ORDER BY execution.id
    FOR NO KEY UPDATE OF execution SKIP LOCKED
),
locked AS MATERIALIZED (
    SELECT target.*, clock_timestamp() AS now FROM target
),
ruled AS MATERIALIZED (
    SELECT locked.*,
           CASE
               WHEN on_lost = 'unknown' THEN 'unknown'
               WHEN cancel THEN 'cancelled'
               WHEN attempt >= max_attempts THEN 'failed'
               ELSE 'retrying'
           END AS next
    FROM locked
),
recovered AS (
    UPDATE execution
    SET state              = ruled.next,
        reason             = CASE WHEN ruled.next = 'cancelled' THEN 'cancelled'
                                  WHEN ruled.worker_lost THEN 'worker_lost'
                                  ELSE 'timeout' END,
        error              = CASE WHEN ruled.worker_lost
                                  THEN 'the session of its worker was lost'
                                  ELSE 'no result before the deadline' END,
        attempts_exhausted = ruled.next = 'failed',
        available_at       = CASE WHEN ruled.next IN ('retrying', 'unknown') THEN ruled.now
                                  ELSE execution.available_at END,
        dispatch_no        = execution.dispatch_no
                             + CASE WHEN ruled.next = 'retrying' THEN 1 ELSE 0 END,
        -- What is unknown waits for its probe's dispatch (probes/dispatch.sql).
        dispatched_at      = CASE WHEN ruled.next = 'retrying' THEN ruled.now
                                  WHEN ruled.next = 'unknown' THEN NULL
                                  ELSE execution.dispatched_at END,
        probe_no           = 0,
        attempt_ended_at   = ruled.now,
        left_by            = 'sweep',
        escalated_at       = NULL, -- of an earlier loss
        ended_at           = CASE WHEN ruled.next IN ('failed', 'cancelled') THEN ruled.now END
    FROM ruled
    WHERE execution.id = ruled.id
    RETURNING execution.id, execution.job, execution.state, execution.reason,
              execution.dispatch_no, execution.queue,
              execution.priority, ruled.now
),
dispatched AS (
    INSERT INTO outbox (execution_id, dispatch_no, queue, priority, created_at)
    SELECT id, dispatch_no, queue, priority, now FROM recovered WHERE state = 'retrying'
    ORDER BY id
)
SELECT id, job, state, reason FROM recovered
