-- $1 retention (µs), $2 limit, $3 the shortest retention there is (µs). A key whose execution is gone is
-- forgotten by its own age.
--
-- A claim judges a message by the mark (submit.sql). So the mark moves first, never back, and only
-- what lay before it a minute ago is forgotten: by then no statement runs that has read another.
-- The snapshot shows the row as it was before this statement moves it.
--
-- A mark younger than the shortest retention, or set in the future, is of a clock that was wrong: it
-- comes back, and its minute begins again.
WITH moved AS (
    UPDATE ledger
    SET keys_forgotten_to = CASE WHEN keys_marked_at <= clock_timestamp()
            THEN keys_marked_to ELSE keys_forgotten_to END,
        keys_marked_to    = greatest(
            least(keys_marked_to, clock_timestamp() - $3::bigint * interval '1 microsecond'),
            clock_timestamp() - $1::bigint * interval '1 microsecond'),
        keys_marked_at    = clock_timestamp()
    WHERE keys_marked_at <= clock_timestamp() - interval '1 minute'
       OR keys_marked_at > clock_timestamp()
),
old AS MATERIALIZED (
    SELECT least(keys_forgotten_to, clock_timestamp() - $1::bigint * interval '1 microsecond')
           AS before
    FROM ledger
),
target AS MATERIALIZED (
    SELECT submission_key.job, submission_key.key
    FROM submission_key
    LEFT JOIN execution ON execution.id = submission_key.execution_id
    WHERE submission_key.created_at < (SELECT before FROM old)
      AND (execution.id IS NULL OR execution.ended_at < (SELECT before FROM old))
    ORDER BY submission_key.created_at, submission_key.job, submission_key.key
    LIMIT $2
    FOR UPDATE OF submission_key SKIP LOCKED
)
DELETE FROM submission_key
USING target
WHERE submission_key.job = target.job AND submission_key.key = target.key
