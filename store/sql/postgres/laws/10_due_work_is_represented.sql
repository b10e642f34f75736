-- A dispatch counts as lost when the work stream was seen to be lost after it; the relays have
-- 60 s to repeat it.
WITH broken AS (
    SELECT format(
               'execution %s is due since %s, its dispatch %s is %s',
               execution.id, execution.available_at, execution.dispatch_no,
               CASE WHEN execution.dispatched_at IS NULL THEN 'not made'
                    ELSE 'lost, of ' || execution.dispatched_at END
           ) AS example
    FROM execution
    WHERE execution.state IN ('pending', 'retrying')
      AND execution.available_at < clock_timestamp() - interval '5 seconds'
      AND NOT EXISTS (SELECT FROM outbox WHERE outbox.execution_id = execution.id)
      AND (
          execution.dispatched_at IS NULL
          OR execution.dispatched_at < (
              SELECT max(seen_at) FROM stream
              WHERE name LIKE '%\_WORK' AND seen_at < clock_timestamp() - interval '60 seconds'
          )
      )
)
SELECT (
           SELECT count(*) FROM execution
           WHERE state IN ('pending', 'retrying')
             AND available_at < clock_timestamp() - interval '5 seconds'
       ) AS looked_at,
       (SELECT count(*) FROM broken) AS violations,
       ARRAY(SELECT example FROM broken ORDER BY example LIMIT $1) AS examples
