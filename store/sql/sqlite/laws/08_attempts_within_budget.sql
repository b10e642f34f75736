-- ?1 the ledger's now (unused), ?2 examples to name.
WITH bad AS (
    SELECT 'execution ' || hex(id) || ': ' || attempt || ' attempts of ' || max_attempts AS example
    FROM execution WHERE attempt > max_attempts
    UNION ALL
    SELECT 'execution ' || hex(e.id) || ': generation ' || a.generation || ' was attempt '
        || a.attempt || ' of ' || e.max_attempts
    FROM attempt a JOIN execution e ON e.id = a.execution_id WHERE a.attempt > e.max_attempts
)
SELECT (SELECT count(*) FROM execution WHERE generation > 0) AS looked_at,
    (SELECT count(*) FROM bad) AS violations, examples.example
FROM (SELECT 1) LEFT JOIN (SELECT example FROM bad ORDER BY example LIMIT ?2) AS examples
