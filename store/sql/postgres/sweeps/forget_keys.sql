-- $1 retention (µs), $2 most keys to look at, $3 the shortest retention there is (µs); $4 when a key was
-- recorded, $5 its job and $6 itself, after which to look. A key whose execution is gone is forgotten by
-- its own age.
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
looked AS MATERIALIZED (
    SELECT ctid AS place, job, key, execution_id, created_at
    FROM submission_key
    WHERE created_at < (SELECT before FROM old)
      AND created_at >= $4
      AND (created_at, job, key) > ($4, $5, $6)
    ORDER BY created_at, job, key
    LIMIT $2
),
-- By its place: a join may become a walk over all keys.
target AS MATERIALIZED (
    SELECT ctid AS place
    FROM submission_key
    WHERE ctid = ANY (ARRAY(
        SELECT looked.place
        FROM looked
        LEFT JOIN LATERAL (
            SELECT id, ended_at FROM execution WHERE execution.id = looked.execution_id LIMIT 1
        ) AS its ON true
        WHERE its.id IS NULL OR its.ended_at < (SELECT before FROM old)
    ))
    FOR UPDATE SKIP LOCKED
),
gone AS (
    DELETE FROM submission_key WHERE ctid = ANY (ARRAY(SELECT place FROM target))
    RETURNING key
)
SELECT (SELECT count(*) FROM gone) AS keys, last.created_at, last.job, last.key
FROM (SELECT) AS one
LEFT JOIN (
    SELECT created_at, job, key FROM looked
    ORDER BY created_at, job, key
    OFFSET $2 - 1 LIMIT 1
) AS last ON true
