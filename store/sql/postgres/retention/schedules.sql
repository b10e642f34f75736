-- $1 retention (µs), $2 limit. Tombstones of that age of which nothing is left, with their ranges and
-- timings. The order keeps each look at the fires a probe of its index: without it the planner walks
-- the table to a first row that is not there.
WITH target AS MATERIALIZED (
    SELECT schedule.id
    FROM schedule
    WHERE deleted_at IS NOT NULL
      AND deleted_at < (SELECT clock_timestamp()) - $1::bigint * interval '1 microsecond'
      AND (
          SELECT true FROM fire
          WHERE fire.schedule_id = schedule.id
          ORDER BY fire.scheduled_at
          LIMIT 1
      ) IS NULL
      AND (
          SELECT true FROM execution
          WHERE execution.schedule_id = schedule.id
            AND execution.state IN ('pending', 'running', 'retrying', 'unknown')
          ORDER BY execution.held, execution.id
          LIMIT 1
      ) IS NULL
    ORDER BY deleted_at
    LIMIT $2
    FOR UPDATE SKIP LOCKED
),
ranges AS (
    DELETE FROM non_fire WHERE schedule_id = ANY (ARRAY(SELECT id FROM target))
    RETURNING schedule_id
),
timings AS (
    DELETE FROM schedule_timing WHERE schedule_id = ANY (ARRAY(SELECT id FROM target))
    RETURNING schedule_id
),
schedules AS (
    DELETE FROM schedule WHERE id = ANY (ARRAY(SELECT id FROM target))
    RETURNING id
)
SELECT (SELECT count(*) FROM schedules) AS schedules,
       (SELECT count(*) FROM ranges) AS non_fires,
       (SELECT count(*) FROM timings) AS timings
