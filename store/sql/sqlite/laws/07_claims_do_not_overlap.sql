-- ?1 the ledger's now (unused), ?2 examples to name.
WITH bad AS (
    SELECT 'execution ' || hex(id) || ': generation ' || generation || ' claimed at ' || claimed_at
        || ', the one before it ended at ' || coalesce(ended_before, 'no time') AS example
    FROM (
        SELECT id, generation, claimed_at, ended_at,
            lag(generation) OVER claims AS generation_before,
            lag(ended_at) OVER claims AS ended_before
        FROM (
            SELECT execution_id AS id, generation, claimed_at, ended_at FROM attempt
            UNION ALL
            SELECT id, generation, claimed_at, attempt_ended_at FROM execution WHERE generation > 0
        )
        WINDOW claims AS (PARTITION BY id ORDER BY generation)
    )
    WHERE (generation_before IS NOT NULL AND (ended_before IS NULL OR claimed_at < ended_before))
        OR ended_at < claimed_at
)
SELECT (SELECT (SELECT count(*) FROM attempt) + (SELECT count(*) FROM execution WHERE generation > 0)) AS looked_at,
    (SELECT count(*) FROM bad) AS violations, examples.example
FROM (SELECT 1) LEFT JOIN (SELECT example FROM bad ORDER BY example LIMIT ?2) AS examples
