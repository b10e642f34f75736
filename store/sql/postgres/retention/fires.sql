-- $1 retention (µs), $2 most executions to look at, and most executions and attempts to delete beyond
-- one fire, $3 the execution after which to look.
--
-- Ids begin with an instant that lies before an execution's end, so what is old is found by the key
-- alone, oldest first; then each fire is judged by the rows of all its executions. Where a caller's own
-- id begins with no instant, or a clock was wrong, it lies far ahead as a rule: those are looked at
-- too, after the others. The conditions are the snapshot's and stay true: what has ended is never
-- reopened. A retry that begins meanwhile has its own payload and keeps its operation; of two retries
-- at once one wins whether this row stands or not.
--
-- No lock is waited for. A fire goes with all its executions or not at all, and one of a schedule only
-- while that schedule's row is held, whose history begins later from then on: the fires that stay before
-- it are no part of a history without gaps. A planner leaves that schedule to its next look meanwhile.
--
-- Attempts have no bound that one statement could delete. A fire with more than $2 loses so many of
-- the oldest first, call by call, and the rows say how many are gone.
--
-- Each condition is a probe of one key: an EXISTS may become a hash of a whole table, and a list
-- without an array a walk over it.
WITH old AS MATERIALIZED (
    SELECT before,
           (
               lpad(to_hex(greatest(floor(extract(epoch FROM before) * 1000), 0)::bigint), 12, '0')
               || repeat('0', 20)
           )::uuid AS id,
           (
               lpad(to_hex(floor(extract(epoch FROM ahead) * 1000)::bigint), 12, '0')
               || repeat('0', 20)
           )::uuid AS ahead
    FROM (
        SELECT clock_timestamp() - $1::bigint * interval '1 microsecond' AS before,
               clock_timestamp() + interval '1 day' AS ahead
    ) AS clock
),
near AS MATERIALIZED (
    SELECT id, fire_id, row_number() OVER (ORDER BY id) AS place
    FROM (
        (
            SELECT id, fire_id FROM execution
            WHERE id > $3 AND id < (SELECT id FROM old)
            ORDER BY id
            LIMIT $2
        )
        UNION ALL
        (
            SELECT id, fire_id FROM execution
            WHERE id > greatest($3, (SELECT ahead FROM old))
            ORDER BY id
            LIMIT $2
        )
        ORDER BY id
        LIMIT $2
    ) AS looked
),
found AS MATERIALIZED (
    SELECT fire_id, min(place) AS place FROM near GROUP BY fire_id
),
judged AS MATERIALIZED (
    SELECT found.fire_id, found.place, fire.schedule_id, fire.scheduled_at,
           its.executions, its.attempts,
           coalesce(fire.trigger IN ('cron', 'every', 'at'), false) AS instant
    FROM found
    LEFT JOIN fire
        ON fire.id = found.fire_id AND fire.id = ANY (ARRAY(SELECT fire_id FROM found))
    CROSS JOIN LATERAL (
        SELECT count(*) AS executions,
               sum(greatest(execution.generation - 1 - execution.attempts_gone, 0)) AS attempts,
               bool_and(
                   execution.ended_at IS NOT NULL
                   AND execution.ended_at < (SELECT before FROM old)
                   -- Its dispatch has not been taken back from the relay.
                   AND (
                       SELECT true FROM outbox WHERE outbox.execution_id = execution.id LIMIT 1
                   ) IS NULL
                   -- A key is forgotten first, by its own retention.
                   AND (
                       SELECT true FROM submission_key
                       WHERE submission_key.job = execution.job
                         AND submission_key.key = execution.key
                         AND submission_key.execution_id = execution.id
                       LIMIT 1
                   ) IS NULL
                   -- A person has yet to look after it.
                   AND (
                       SELECT true FROM dead_letter
                       WHERE dead_letter.execution_id = execution.id
                         AND dead_letter.resolved_at IS NULL
                       LIMIT 1
                   ) IS NULL
                   -- An operation stays until the last of its retries is old; the oldest goes
                   -- first: what is left can be retried only as it could before.
                   AND (
                       SELECT true FROM execution AS again
                       WHERE again.operation_id = execution.operation_id
                         AND again.retry_of IS NOT NULL
                         AND (again.ended_at IS NULL OR again.ended_at >= (SELECT before FROM old))
                       LIMIT 1
                   ) IS NULL
                   AND (
                       SELECT true FROM execution AS first
                       WHERE first.id = execution.retry_of
                       LIMIT 1
                   ) IS NULL
               ) AS old
        FROM execution
        WHERE execution.fire_id = found.fire_id
    ) AS its
    WHERE its.old
      -- Nothing is held behind it.
      AND (
          SELECT true FROM fire AS held
          WHERE held.schedule_id = fire.schedule_id
            AND held.held_behind = fire.id
            AND held.released_at IS NULL
          LIMIT 1
      ) IS NULL
),
eligible AS MATERIALIZED (
    SELECT judged.*, attempts > $2 AS long,
           sum(least(executions + attempts, $2)) OVER (ORDER BY place)
               - least(executions + attempts, $2) AS ahead
    FROM judged
),
history AS MATERIALIZED (
    SELECT schedule.id
    FROM schedule
    WHERE schedule.id = ANY (ARRAY(
        SELECT schedule_id FROM eligible WHERE instant AND NOT long AND ahead < $2
    ))
    ORDER BY schedule.id
    FOR NO KEY UPDATE SKIP LOCKED
),
free AS MATERIALIZED (
    SELECT eligible.*
    FROM eligible
    WHERE ahead < $2
      AND (
          NOT instant
          OR long
          OR schedule_id IN (SELECT id FROM history)
          -- A hand has deleted it: there is no history to keep.
          OR (SELECT true FROM schedule WHERE schedule.id = eligible.schedule_id LIMIT 1) IS NULL
      )
),
locked AS MATERIALIZED (
    SELECT execution.id, execution.fire_id, execution.attempts_gone,
           greatest(execution.generation - 1 - execution.attempts_gone, 0) AS attempts
    FROM execution
    WHERE execution.fire_id = ANY (ARRAY(SELECT fire_id FROM free))
    ORDER BY execution.id
    FOR UPDATE SKIP LOCKED
),
whole AS MATERIALIZED (
    SELECT free.fire_id, free.place, free.long, free.instant, free.schedule_id, free.scheduled_at
    FROM free
    JOIN (
        SELECT fire_id, count(*) AS executions FROM locked GROUP BY fire_id
    ) AS got ON got.fire_id = free.fire_id AND got.executions = free.executions
),
going AS MATERIALIZED (
    SELECT * FROM whole WHERE NOT long
),
doomed AS MATERIALIZED (
    SELECT id FROM locked WHERE fire_id IN (SELECT fire_id FROM going)
),
-- Of one fire at most: what lies behind it does not fit.
shortened AS MATERIALIZED (
    SELECT id, place, attempts_gone AS after, attempts_gone + least(attempts, $2 - ahead)::bigint AS up_to
    FROM (
        SELECT locked.id, locked.attempts_gone, locked.attempts, whole.place,
               sum(locked.attempts) OVER (ORDER BY locked.id) - locked.attempts AS ahead
        FROM locked
        JOIN whole ON whole.fire_id = locked.fire_id AND whole.long
    ) AS long
    WHERE attempts > 0 AND ahead < $2
),
past AS MATERIALIZED (
    SELECT its.place
    FROM shortened
    CROSS JOIN LATERAL (
        SELECT attempt.ctid AS place FROM attempt
        WHERE attempt.execution_id = shortened.id
          -- Another call may have deleted those before since this one's snapshot.
          AND attempt.generation > shortened.after
          AND attempt.generation <= shortened.up_to
        ORDER BY attempt.generation
        LIMIT $2
    ) AS its
),
past_attempts AS (
    DELETE FROM attempt WHERE ctid = ANY (ARRAY(SELECT place FROM past))
    RETURNING execution_id
),
past_verdicts AS (
    DELETE FROM verdict
    USING shortened
    WHERE verdict.execution_id = shortened.id
      AND verdict.execution_id = ANY (ARRAY(SELECT id FROM shortened))
      AND verdict.generation <= shortened.up_to
    RETURNING verdict.execution_id
),
past_refused AS (
    DELETE FROM fenced_result
    USING shortened
    WHERE fenced_result.execution_id = shortened.id
      AND fenced_result.execution_id = ANY (ARRAY(SELECT id FROM shortened))
      AND fenced_result.generation <= shortened.up_to
    RETURNING fenced_result.execution_id
),
past_gone AS (
    UPDATE execution
    SET attempts_gone = shortened.up_to
    FROM shortened
    WHERE execution.id = shortened.id
      AND execution.id = ANY (ARRAY(SELECT id FROM shortened))
),
attempts AS (
    DELETE FROM attempt WHERE execution_id = ANY (ARRAY(SELECT id FROM doomed))
    RETURNING execution_id
),
verdicts AS (
    DELETE FROM verdict WHERE execution_id = ANY (ARRAY(SELECT id FROM doomed))
    RETURNING execution_id
),
refused AS (
    DELETE FROM fenced_result WHERE execution_id = ANY (ARRAY(SELECT id FROM doomed))
    RETURNING execution_id
),
executions AS (
    DELETE FROM execution WHERE id = ANY (ARRAY(SELECT id FROM doomed))
    RETURNING id
),
fires AS (
    DELETE FROM fire WHERE id = ANY (ARRAY(SELECT fire_id FROM going))
    RETURNING id
),
moves AS MATERIALIZED (
    SELECT schedule_id, max(scheduled_at) AS up_to FROM going WHERE instant GROUP BY schedule_id
),
moved AS (
    UPDATE schedule
    SET history_from = greatest(schedule.history_from, moves.up_to)
    FROM moves
    WHERE schedule.id = moves.schedule_id
      AND schedule.id = ANY (ARRAY(SELECT schedule_id FROM moves))
),
-- No fire lies inside a range, so none reaches over the new beginning.
ranges AS (
    DELETE FROM non_fire
    USING moves
    WHERE non_fire.schedule_id = moves.schedule_id
      AND non_fire.from_at <= moves.up_to
      AND non_fire.until_at <= moves.up_to
    RETURNING non_fire.from_at
),
-- The last timing that began before it is the one of the instants behind it.
timings AS (
    DELETE FROM schedule_timing
    USING moves
    WHERE schedule_timing.schedule_id = moves.schedule_id
      AND (
          SELECT true FROM schedule_timing AS later
          WHERE later.schedule_id = moves.schedule_id
            AND later.valid_from <= moves.up_to
            AND (later.valid_from, later.version)
                > (schedule_timing.valid_from, schedule_timing.version)
          LIMIT 1
      )
    RETURNING schedule_timing.version
),
-- What does not fit is looked at by the next call.
cut AS MATERIALIZED (
    SELECT min(place) AS place
    FROM (
        SELECT place FROM eligible WHERE ahead >= $2
        UNION ALL
        SELECT place FROM shortened
    ) AS left_over
)
SELECT (SELECT count(*) FROM fires) AS fires,
       (SELECT count(*) FROM executions) AS executions,
       (SELECT count(*) FROM attempts) + (SELECT count(*) FROM past_attempts) AS attempts,
       (SELECT count(*) FROM verdicts) + (SELECT count(*) FROM past_verdicts) AS verdicts,
       (SELECT count(*) FROM refused) + (SELECT count(*) FROM past_refused) AS refused_results,
       (SELECT count(*) FROM ranges) AS non_fires,
       (SELECT count(*) FROM timings) AS timings,
       CASE
           WHEN cut.place IS NOT NULL
           THEN coalesce((SELECT near.id FROM near WHERE near.place = cut.place - 1), $3)
           ELSE (SELECT near.id FROM near WHERE near.place = $2)
       END AS last
FROM cut
