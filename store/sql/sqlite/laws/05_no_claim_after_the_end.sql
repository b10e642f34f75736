-- ?1 the ledger's now (unused), ?2 examples to name.
WITH bad AS (
    SELECT 'execution ' || hex(e.id) || ': generation ' || e.generation || ' claimed '
        || (e.claimed_at - e.ended_at) || ' ms after its end' AS example
    FROM execution e WHERE e.claimed_at > e.ended_at
    UNION ALL
    SELECT 'execution ' || hex(e.id) || ': generation ' || a.generation || ' claimed '
        || (a.claimed_at - e.ended_at) || ' ms after its end'
    FROM execution e JOIN attempt a ON a.execution_id = e.id WHERE a.claimed_at > e.ended_at
)
SELECT (SELECT count(*) FROM execution WHERE ended_at IS NOT NULL) AS looked_at,
    (SELECT count(*) FROM bad) AS violations, examples.example
FROM (SELECT 1) LEFT JOIN (SELECT example FROM bad ORDER BY example LIMIT ?2) AS examples
