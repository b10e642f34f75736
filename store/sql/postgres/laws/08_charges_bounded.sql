-- Charged tries only: what was given back is not counted.
WITH broken AS (
    SELECT format('execution %s was charged %s of %s attempts', id, attempt, max_attempts) AS example
    FROM execution
    WHERE attempt > max_attempts
)
SELECT (SELECT count(*) FROM execution WHERE generation > 0) AS looked_at,
       (SELECT count(*) FROM broken) AS violations,
       ARRAY(SELECT example FROM broken ORDER BY example LIMIT $1) AS examples
