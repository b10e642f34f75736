-- ?1 the ledger's now, ?2 examples to name.
-- Bound: a lease (9 s) and two sweeps (1 s each); a deadline has 5 s of grace before it.
WITH bad AS (
    SELECT 'execution ' || hex(e.id) || ': still running, ' || CASE
            WHEN s.id IS NULL THEN 'its session is missing'
            WHEN s.ended_at <= ?1 - 11000
                THEN 'its session ended ' || (?1 - s.ended_at) || ' ms ago'
            ELSE 'its deadline passed ' || (?1 - e.deadline_at) || ' ms ago' END AS example
    FROM execution e LEFT JOIN session s ON s.id = e.session_id
    WHERE e.state = 'running' AND ((s.id IS NULL AND e.claimed_at <= ?1 - 11000)
        OR s.ended_at <= ?1 - 11000 OR e.deadline_at <= ?1 - 16000)
)
SELECT (SELECT count(*) FROM execution WHERE state = 'running') AS looked_at,
    (SELECT count(*) FROM bad) AS violations, examples.example
FROM (SELECT 1) LEFT JOIN (SELECT example FROM bad ORDER BY example LIMIT ?2) AS examples
