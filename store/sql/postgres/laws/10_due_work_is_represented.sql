-- A dispatch without an outbox row is with the broker, unless
-- * its stream was seen lost since: then the relays have 60 s to begin to send it again, and until
--   an hour has passed as long as they are seen at it (500 rows a second);
-- * its lane went on without it: a dispatch made 5 min later was claimed meanwhile;
--   after losses in a row twice the time that the relays wait by default, if that is more.
-- What is held is due once nothing else of its schedule is unfinished: the sweep has 5 s.
WITH waiting AS (
    SELECT execution.id, execution.queue, execution.priority, execution.available_at,
           execution.dispatch_no, execution.dispatched_at,
           greatest(
               interval '5 minutes',
               2 * least(
                   interval '15 minutes',
                   power(2, least(execution.lost_dispatches, 20)) * interval '60 seconds'
               )
           ) AS patience
    FROM execution
    WHERE execution.state IN ('pending', 'retrying')
      AND NOT execution.held
      AND execution.available_at < statement_timestamp() - interval '5 seconds'
      AND NOT EXISTS (SELECT FROM outbox WHERE outbox.execution_id = execution.id)
),
patience AS (
    SELECT CASE
               WHEN EXISTS (
                   SELECT FROM execution
                   WHERE state IN ('pending', 'retrying')
                     AND dispatch_no > 1
                     AND dispatched_at > statement_timestamp() - interval '10 seconds'
               )
               THEN interval '1 hour' ELSE interval '60 seconds'
           END AS time
),
loss AS (
    SELECT coalesce(max(seen_at), '-infinity') AS any_at,
           max(seen_at) FILTER (
               WHERE seen_at < statement_timestamp() - (SELECT time FROM patience)
           ) AS overdue_at
    FROM stream
    WHERE name LIKE '%\_WORK'
),
lane AS (
    SELECT queue, priority, max(dispatched_at) AS claimed_up_to
    FROM execution
    WHERE claimed_at >= dispatched_at
    GROUP BY queue, priority
),
broken AS (
    SELECT format(
               'execution %s is due since %s, its dispatch %s is %s',
               waiting.id, waiting.available_at, waiting.dispatch_no,
               CASE
                   WHEN waiting.dispatched_at IS NULL THEN 'not made'
                   WHEN waiting.dispatched_at < loss.overdue_at
                   THEN 'lost with its stream, of ' || waiting.dispatched_at
                   ELSE 'of ' || waiting.dispatched_at || ', one of ' || lane.claimed_up_to
                       || ' was claimed'
               END
           ) AS example
    FROM waiting
    CROSS JOIN loss
    LEFT JOIN lane ON lane.queue = waiting.queue AND lane.priority = waiting.priority
    WHERE waiting.dispatched_at IS NULL
       OR waiting.dispatched_at < loss.overdue_at
       OR (
           waiting.dispatched_at >= loss.any_at
           AND waiting.dispatched_at < lane.claimed_up_to - waiting.patience
       )
    UNION ALL
    SELECT format('fire %s is held although nothing else of its schedule is unfinished', fire.id)
    FROM fire
    WHERE fire.held_behind IS NOT NULL
      AND fire.released_at IS NULL
      AND fire.planned_at < statement_timestamp() - interval '5 seconds'
      AND NOT EXISTS (
          SELECT FROM execution
          WHERE execution.schedule_id = fire.schedule_id
            AND NOT execution.held
            AND coalesce(execution.ended_at, 'infinity')
                > statement_timestamp() - interval '5 seconds'
      )
)
SELECT (
           SELECT count(*) FROM execution
           WHERE state IN ('pending', 'retrying')
             AND (held OR available_at < statement_timestamp() - interval '5 seconds')
       ) AS looked_at,
       (SELECT count(*) FROM broken) AS violations,
       ARRAY(SELECT example FROM broken ORDER BY example LIMIT $1) AS examples
