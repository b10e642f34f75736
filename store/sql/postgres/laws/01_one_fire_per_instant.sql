-- Manual triggers are no instants.
WITH broken AS (
    SELECT format('schedule %s has %s fires at %s', schedule_id, count(*), scheduled_at) AS example
    FROM fire
    WHERE trigger IN ('cron', 'every', 'at')
    GROUP BY schedule_id, scheduled_at
    HAVING count(*) > 1
)
SELECT (SELECT count(*) FROM fire WHERE trigger IN ('cron', 'every', 'at')) AS looked_at,
       (SELECT count(*) FROM broken) AS violations,
       ARRAY(SELECT example FROM broken ORDER BY example LIMIT $1) AS examples
