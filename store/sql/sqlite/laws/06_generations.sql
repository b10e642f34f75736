-- ?1 the ledger's now (unused), ?2 examples to name.
-- History holds 1..n-1, but for the first ones of a long history that retention has begun with; the row is
-- n; (execution_id, generation) is unique in the history.
WITH bad AS (
    SELECT 'execution ' || hex(e.id) || ': generation ' || e.generation || ', history of '
        || count(a.generation) || ' from ' || coalesce(min(a.generation), 'none') || ' to '
        || coalesce(max(a.generation), 'none') AS example
    FROM execution e LEFT JOIN attempt a ON a.execution_id = e.id
    GROUP BY e.id
    HAVING count(a.generation) <> max(e.generation - 1, 0) - e.attempts_gone
        OR min(a.generation) <> e.attempts_gone + 1
        OR max(a.generation) <> e.generation - 1
    UNION ALL
    SELECT 'execution ' || hex(id) || ': generation ' || generation || ', accepted result of '
        || coalesce(result_generation, 'none')
    FROM execution
    WHERE (state = 'succeeded' AND result_generation IS NOT generation)
        OR result_generation <> generation
    UNION ALL
    SELECT 'execution ' || hex(a.execution_id) || ': history without a row'
    FROM attempt a
    WHERE NOT EXISTS (SELECT 1 FROM execution e WHERE e.id = a.execution_id)
)
SELECT (SELECT count(*) FROM execution WHERE generation > 0) AS looked_at,
    (SELECT count(*) FROM bad) AS violations, examples.example
FROM (SELECT 1) LEFT JOIN (SELECT example FROM bad ORDER BY example LIMIT ?2) AS examples
