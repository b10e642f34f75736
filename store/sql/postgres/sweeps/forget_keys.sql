-- $1 retention (µs), $2 limit. A key whose execution is gone is forgotten by its own age.
WITH old AS MATERIALIZED (
    SELECT clock_timestamp() - $1::bigint * interval '1 microsecond' AS before
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
