-- ?1 the ledger's now (unused), ?2 examples to name.
-- A retry is a fire of its own: one shard of its total. Every state is counted by name, so that a
-- row in no known state is missing from the sum.
WITH bad AS (
    SELECT 'fire ' || hex(fire_id) || ': ' || (waiting + running + unknown + ended)
        || ' executions (' || waiting || ' waiting, ' || running || ' running, ' || unknown
        || ' unknown, ' || ended || ' ended) of '
        || coalesce(fire.shard_total, sums.alone) AS example
    FROM (
        SELECT fire_id, max(shard_total) AS shard_total, min(shard_total) AS shard_total_min,
            CASE WHEN min(retry_of IS NOT NULL) THEN 1 ELSE max(shard_total) END AS alone,
            sum(state IN ('pending', 'retrying')) AS waiting,
            sum(state = 'running') AS running,
            sum(state = 'unknown') AS unknown,
            sum(state IN ('succeeded', 'failed', 'cancelled', 'expired')) AS ended
        FROM execution GROUP BY fire_id
    ) AS sums LEFT JOIN fire ON fire.id = sums.fire_id
    WHERE waiting + running + unknown + ended <> coalesce(fire.shard_total, sums.alone)
        OR sums.shard_total <> sums.shard_total_min
)
SELECT (SELECT count(DISTINCT fire_id) FROM execution) AS looked_at,
    (SELECT count(*) FROM bad) AS violations, examples.example
FROM (SELECT 1) LEFT JOIN (SELECT example FROM bad ORDER BY example LIMIT ?2) AS examples
