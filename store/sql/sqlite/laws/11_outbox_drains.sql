-- ?1 the ledger's now, ?2 examples to name.
WITH bad AS (
    SELECT 'outbox row ' || id || ' of execution ' || hex(execution_id) || ': waits for '
        || (?1 - created_at) || ' ms' AS example
    FROM outbox WHERE created_at <= ?1 - 60000
)
SELECT (SELECT count(*) FROM outbox) AS looked_at,
    (SELECT count(*) FROM bad) AS violations, examples.example
FROM (SELECT 1) LEFT JOIN (SELECT example FROM bad ORDER BY example LIMIT ?2) AS examples
