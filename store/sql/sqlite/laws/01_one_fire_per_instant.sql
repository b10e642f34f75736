-- ?1 the ledger's now (unused), ?2 examples to name.
-- Differs: ids are blobs, shown as hex without dashes (in all laws).
WITH bad AS (
    SELECT 'schedule ' || hex(schedule_id) || ' at ' || scheduled_at || ': ' || count(*) || ' fires'
        AS example
    FROM fire WHERE trigger IN ('cron', 'every', 'at')
    GROUP BY schedule_id, scheduled_at HAVING count(*) > 1
)
SELECT (SELECT count(*) FROM fire WHERE trigger IN ('cron', 'every', 'at')) AS looked_at,
    (SELECT count(*) FROM bad) AS violations, examples.example
FROM (SELECT 1) LEFT JOIN (SELECT example FROM bad ORDER BY example LIMIT ?2) AS examples
