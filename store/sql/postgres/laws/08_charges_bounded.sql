-- Charged tries only: what was given back is not counted. History is evidence of its own: what it
-- charged is in the row's count too.
WITH past AS (
    SELECT execution_id, count(*) AS charged
    FROM attempt
    WHERE coalesce(reason, '') NOT IN ('snooze', 'release')
    GROUP BY execution_id
),
broken AS (
    SELECT format(
               'execution %s was charged %s of %s attempts, %s of them in history',
               execution.id, execution.attempt, execution.max_attempts, coalesce(past.charged, 0)
           ) AS example
    FROM execution
    LEFT JOIN past ON past.execution_id = execution.id
    WHERE execution.attempt > execution.max_attempts
       OR past.charged > execution.max_attempts
       OR past.charged > execution.attempt
)
SELECT (SELECT count(*) FROM execution WHERE generation > 0) AS looked_at,
       (SELECT count(*) FROM broken) AS violations,
       ARRAY(SELECT example FROM broken ORDER BY example LIMIT $1) AS examples
