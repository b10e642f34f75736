-- History holds 1 to n - 1, but for the first ones of a long history that retention has begun with; the
-- row is n; a result that was accepted has n.
WITH past AS (
    SELECT execution_id, count(*) AS attempts, min(generation) AS least, max(generation) AS most
    FROM attempt
    GROUP BY execution_id
),
broken AS (
    SELECT format(
               'execution %s (%s, generation %s, result of %s) has %s past attempts from %s to %s',
               execution.id, execution.state, execution.generation, execution.result_generation,
               coalesce(past.attempts, 0), past.least, past.most
           ) AS example
    FROM execution
    LEFT JOIN past ON past.execution_id = execution.id
    WHERE coalesce(past.attempts, 0) <> greatest(execution.generation - 1, 0) - execution.attempts_gone
       OR past.least <> execution.attempts_gone + 1
       OR past.most <> execution.generation - 1
       OR execution.result_generation <> execution.generation
       OR (execution.state = 'succeeded' AND execution.result_generation IS NULL)
)
SELECT (SELECT count(*) FROM execution WHERE generation > 0 OR result_generation IS NOT NULL) AS looked_at,
       (SELECT count(*) FROM broken) AS violations,
       ARRAY(SELECT example FROM broken ORDER BY example LIMIT $1) AS examples
