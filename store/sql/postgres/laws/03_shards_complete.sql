-- Each fire of a schedule has each of its shards, and none beyond; none of its executions is
-- without it. A retry is a fire of its own in its execution row: it repeats the same shard.
WITH broken AS (
    SELECT format(
               'fire %s has %s of its %s shards and %s others',
               fire.id, coalesce(found.inside, 0), fire.shard_total, coalesce(found.outside, 0)
           ) AS example
    FROM fire
    LEFT JOIN (
        SELECT execution.fire_id,
               count(DISTINCT execution.shard_index) FILTER (
                   WHERE execution.shard_index BETWEEN 0 AND fire.shard_total - 1
               ) AS inside,
               count(*) FILTER (
                   WHERE execution.shard_index NOT BETWEEN 0 AND fire.shard_total - 1
               ) AS outside
        FROM execution
        JOIN fire ON fire.id = execution.fire_id
        GROUP BY execution.fire_id
    ) AS found ON found.fire_id = fire.id
    WHERE coalesce(found.inside, 0) <> fire.shard_total OR coalesce(found.outside, 0) <> 0
    UNION ALL
    SELECT format('execution %s has no fire %s', id, fire_id)
    FROM execution
    WHERE schedule_id IS NOT NULL
      AND retry_of IS NULL
      AND NOT EXISTS (SELECT FROM fire WHERE fire.id = execution.fire_id)
    UNION ALL
    SELECT format(
               'execution %s (shard %s of %s) is no repetition of %s (shard %s of %s)',
               execution.id, execution.shard_index, execution.shard_total, old.id,
               old.shard_index, old.shard_total
           )
    FROM execution
    JOIN execution AS old ON old.id = execution.retry_of
    WHERE execution.shard_index <> old.shard_index
       OR execution.shard_total <> old.shard_total
       OR execution.operation_id <> old.operation_id
       OR execution.job <> old.job
)
SELECT (SELECT count(*) FROM fire)
           + (SELECT count(*) FROM execution WHERE retry_of IS NOT NULL) AS looked_at,
       (SELECT count(*) FROM broken) AS violations,
       ARRAY(SELECT example FROM broken ORDER BY example LIMIT $1) AS examples
