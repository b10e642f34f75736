-- ?1 the ledger's now (unused), ?2 examples to name.
-- History is evidence of its own: what it charged is in the row's count too.
WITH bad AS (
    SELECT 'execution ' || hex(id) || ': ' || attempt || ' attempts of ' || max_attempts AS example
    FROM execution WHERE attempt > max_attempts
    UNION ALL
    SELECT 'execution ' || hex(e.id) || ': generation ' || a.generation || ' was attempt '
        || a.attempt || ' of ' || e.max_attempts
    FROM attempt a JOIN execution e ON e.id = a.execution_id WHERE a.attempt > e.max_attempts
    UNION ALL
    SELECT 'execution ' || hex(e.id) || ': ' || past.charged || ' charged attempts in history, '
        || e.attempt || ' in its row, of ' || e.max_attempts
    FROM execution e JOIN (
        SELECT execution_id, count(*) AS charged FROM attempt
        WHERE coalesce(reason, '') NOT IN ('snooze', 'release') GROUP BY execution_id
    ) AS past ON past.execution_id = e.id
    WHERE past.charged > e.max_attempts OR past.charged > e.attempt
)
SELECT (SELECT count(*) FROM execution WHERE generation > 0) AS looked_at,
    (SELECT count(*) FROM bad) AS violations, examples.example
FROM (SELECT 1) LEFT JOIN (SELECT example FROM bad ORDER BY example LIMIT ?2) AS examples
