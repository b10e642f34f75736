-- 11 s for the sweep to come by.
WITH broken AS (
    SELECT format('execution %s is unknown since %s', id, attempt_ended_at) AS example
    FROM execution
    WHERE state = 'unknown'
      AND escalated_at IS NULL
      AND attempt_ended_at < statement_timestamp() - interval '15 minutes 11 seconds'
)
SELECT (SELECT count(*) FROM execution WHERE state = 'unknown') AS looked_at,
       (SELECT count(*) FROM broken) AS violations,
       ARRAY(SELECT example FROM broken ORDER BY example LIMIT $1) AS examples
