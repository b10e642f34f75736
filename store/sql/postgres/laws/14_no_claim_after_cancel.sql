-- Claims in history and the row's own, of executions with a cancel request.
WITH broken AS (
    SELECT format(
               'execution %s: cancel requested at %s, generation %s claimed at %s',
               id, cancel_requested_at, generation, claimed_at
           ) AS example
    FROM (
        SELECT id, cancel_requested_at, generation, claimed_at FROM execution
        UNION ALL
        SELECT execution.id, execution.cancel_requested_at, attempt.generation, attempt.claimed_at
        FROM attempt
        JOIN execution ON execution.id = attempt.execution_id
    ) AS claims
    WHERE claimed_at > cancel_requested_at
)
SELECT (SELECT count(*) FROM execution WHERE cancel_requested_at IS NOT NULL) AS looked_at,
       (SELECT count(*) FROM broken) AS violations,
       ARRAY(SELECT example FROM broken ORDER BY example LIMIT $1) AS examples
