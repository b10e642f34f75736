-- ?1 the ledger's now (unused), ?2 examples to name.
WITH bad AS (
    SELECT 'execution ' || hex(e.id) || ': generation ' || e.generation
        || ' claimed after the cancel request' AS example
    FROM execution e WHERE e.claimed_at > e.cancel_requested_at
    UNION ALL
    SELECT 'execution ' || hex(e.id) || ': generation ' || a.generation
        || ' claimed after the cancel request'
    FROM execution e JOIN attempt a ON a.execution_id = e.id
    WHERE a.claimed_at > e.cancel_requested_at
)
SELECT (SELECT count(*) FROM execution WHERE cancel_requested_at IS NOT NULL) AS looked_at,
    (SELECT count(*) FROM bad) AS violations, examples.example
FROM (SELECT 1) LEFT JOIN (SELECT example FROM bad ORDER BY example LIMIT ?2) AS examples
