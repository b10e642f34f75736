-- ?1 the ledger's now, ?2 examples to name. 15 min, and 11 s for the sweep to come by.
WITH bad AS (
    SELECT 'execution ' || hex(id) || ': unknown for ' || (?1 - attempt_ended_at)
        || ' ms without escalation' AS example
    FROM execution
    WHERE state = 'unknown' AND escalated_at IS NULL AND attempt_ended_at <= ?1 - 911000
)
SELECT (SELECT count(*) FROM execution WHERE state = 'unknown') AS looked_at,
    (SELECT count(*) FROM bad) AS violations, examples.example
FROM (SELECT 1) LEFT JOIN (SELECT example FROM bad ORDER BY example LIMIT ?2) AS examples
