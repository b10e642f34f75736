-- ?1 the ledger's now (unused), ?2 examples to name.
-- A fire that no schedule owns lives in its execution row, which is its only shard. So does a
-- retry, which repeats the same shard.
WITH bad AS (
    SELECT 'fire ' || hex(f.id) || ': shards ' || coalesce(group_concat(e.shard_index), 'missing')
        || ' of ' || f.shard_total AS example
    FROM fire f LEFT JOIN execution e ON e.fire_id = f.id
    GROUP BY f.id
    HAVING count(e.id) <> f.shard_total OR min(e.shard_index) <> 0
        OR max(e.shard_index) <> f.shard_total - 1
        OR count(DISTINCT e.shard_index) <> f.shard_total
    UNION ALL
    SELECT 'fire ' || hex(fire_id) || ': one-shot with shard ' || shard_index || ' of ' || shard_total
    FROM execution WHERE schedule_id IS NULL AND (shard_index <> 0 OR shard_total <> 1)
    UNION ALL
    SELECT 'execution ' || hex(e.id) || ': its fire is missing'
    FROM execution e
    WHERE e.schedule_id IS NOT NULL AND e.retry_of IS NULL
        AND NOT EXISTS (SELECT 1 FROM fire f WHERE f.id = e.fire_id)
    UNION ALL
    SELECT 'execution ' || hex(e.id) || ': shard ' || e.shard_index || ' of ' || e.shard_total
        || ' is no repetition of ' || hex(old.id)
    FROM execution e JOIN execution old ON old.id = e.retry_of
    WHERE e.shard_index <> old.shard_index OR e.shard_total <> old.shard_total
        OR e.operation_id <> old.operation_id OR e.job <> old.job
)
SELECT (SELECT (SELECT count(*) FROM fire) + (SELECT count(*) FROM execution WHERE schedule_id IS NULL OR retry_of IS NOT NULL)) AS looked_at,
    (SELECT count(*) FROM bad) AS violations, examples.example
FROM (SELECT 1) LEFT JOIN (SELECT example FROM bad ORDER BY example LIMIT ?2) AS examples
