-- Claims in history and the row's own, of executions that have ended.
WITH claims AS (
    SELECT id, ended_at, generation, claimed_at
    FROM execution
    WHERE ended_at IS NOT NULL AND claimed_at IS NOT NULL
    UNION ALL
    SELECT execution.id, execution.ended_at, attempt.generation, attempt.claimed_at
    FROM attempt
    JOIN execution ON execution.id = attempt.execution_id
    WHERE execution.ended_at IS NOT NULL
),
broken AS (
    SELECT format(
               'execution %s ended at %s, its generation %s was claimed at %s',
               id, ended_at, generation, claimed_at
           ) AS example
    FROM claims
    WHERE claimed_at > ended_at
)
SELECT (SELECT count(*) FROM claims) AS looked_at,
       (SELECT count(*) FROM broken) AS violations,
       ARRAY(SELECT example FROM broken ORDER BY example LIMIT $1) AS examples
