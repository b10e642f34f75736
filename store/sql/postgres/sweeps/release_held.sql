-- $1 most executions, but at least one fire, $2 the schedule after which to look, $3 most fires to look at.
-- `last` = the schedule looked at last, if there may be more behind it.
--
-- Let go is a fire of whose schedule nothing is unfinished but what is held; the oldest, should there
-- be several. So is one that is over (cancelled or expired as it was held: its row is not looked at
-- again), and any of a schedule that allows overlaps by now. The conditions are the snapshot's: what
-- is held keeps every plan from beginning something else, so they cannot turn false (plan.sql).
-- `released_at` counts again under the lock: of two sweeps one lets go. No lock is waited for; a fire
-- of which another holds an execution is left to the next round. LIMIT 1 in the order of
-- execution_unfinished keeps each look a probe of that index: without the order the planner walks the
-- table to a first row that may not be there.
WITH near AS MATERIALIZED (
    SELECT id, schedule_id, shard_total
    FROM fire
    WHERE held_behind IS NOT NULL AND released_at IS NULL AND schedule_id > $2
    ORDER BY schedule_id, id
    LIMIT $3
),
held AS MATERIALIZED (
    SELECT fire.id, fire.shard_total,
           row_number() OVER (PARTITION BY fire.schedule_id ORDER BY fire.id) = 1 AS oldest,
           coalesce(schedule.overlap = 'allow', false) AS allowed,
           (
               SELECT true FROM execution
               WHERE execution.schedule_id = fire.schedule_id
                 AND execution.state IN ('pending', 'running', 'retrying', 'unknown')
                 AND NOT execution.held
               ORDER BY execution.held, execution.id
               LIMIT 1
           ) IS NOT NULL AS behind,
           (
               SELECT true FROM execution
               WHERE execution.fire_id = fire.id
                 AND execution.state IN ('pending', 'running', 'retrying', 'unknown')
               LIMIT 1
           ) IS NULL AS over
    FROM near AS fire
    LEFT JOIN schedule ON schedule.id = fire.schedule_id
),
free AS MATERIALIZED (
    SELECT id, sum(shard_total) OVER (ORDER BY id) - shard_total AS before
    FROM held
    WHERE over OR allowed OR oldest AND NOT behind
),
target AS MATERIALIZED (
    SELECT fire.id
    FROM free
    JOIN fire ON fire.id = free.id
    WHERE free.before < $1 AND fire.released_at IS NULL
    ORDER BY fire.id
    FOR NO KEY UPDATE OF fire SKIP LOCKED
),
waiting AS MATERIALIZED (
    SELECT execution.id, execution.fire_id
    FROM target
    JOIN execution ON execution.fire_id = target.id
    WHERE execution.held AND execution.state IN ('pending', 'retrying')
    ORDER BY execution.id
    FOR NO KEY UPDATE OF execution SKIP LOCKED
),
released AS (
    UPDATE fire
    SET released_at = clock_timestamp()
    FROM target
    WHERE fire.id = target.id
      AND (
          SELECT true FROM execution
          WHERE execution.fire_id = target.id
            AND execution.held
            AND execution.state IN ('pending', 'retrying')
            AND execution.id NOT IN (SELECT waiting.id FROM waiting)
          LIMIT 1
      ) IS NULL
    RETURNING fire.id, fire.released_at
),
dispatched AS (
    UPDATE execution
    SET held          = false,
        available_at  = released.released_at,
        dispatch_no   = execution.dispatch_no + 1,
        dispatched_at = released.released_at
    FROM waiting
    JOIN released ON released.id = waiting.fire_id
    WHERE execution.id = waiting.id
    RETURNING execution.id, execution.dispatch_no, execution.queue, execution.priority,
              execution.dispatched_at
),
sent AS (
    INSERT INTO outbox (execution_id, dispatch_no, queue, priority, created_at)
    SELECT id, dispatch_no, queue, priority, dispatched_at FROM dispatched
    ORDER BY id
)
SELECT (SELECT count(*) FROM released) AS fires,
       (SELECT count(*) FROM dispatched) AS executions,
       0::bigint AS ended,
       (
           SELECT schedule_id FROM near
           WHERE (SELECT count(*) FROM near) = $3
           ORDER BY schedule_id DESC
           LIMIT 1
       ) AS last
