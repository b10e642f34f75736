-- Each fire of a schedule has each of its shards, and none beyond; none of its executions is
-- without it.
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
      AND NOT EXISTS (SELECT FROM fire WHERE fire.id = execution.fire_id)
)
SELECT (SELECT count(*) FROM fire) AS looked_at,
       (SELECT count(*) FROM broken) AS violations,
       ARRAY(SELECT example FROM broken ORDER BY example LIMIT $1) AS examples
