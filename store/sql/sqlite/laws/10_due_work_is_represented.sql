-- ?1 the ledger's now, ?2 examples to name.
-- A dispatch without an outbox row is with the broker, unless
-- * its stream was seen lost since: then a relay has 60 s to begin to send it again, and until an
--   hour has passed as long as it is seen at it (500 rows a second);
-- * its lane went on without it: a dispatch made 5 min later was claimed meanwhile;
--   after losses in a row twice the time that the relays wait by default, if that is more.
-- What is held is due once nothing else of its schedule is unfinished: the sweep has 5 s.
WITH waiting AS (
    SELECT e.id, e.queue, e.priority, e.available_at, e.dispatch_no, e.dispatched_at,
        max(300000, 2 * min(900000, 60000 << min(e.lost_dispatches, 20))) AS patience
    FROM execution e
    WHERE e.state IN ('pending', 'retrying') AND NOT e.held AND e.available_at <= ?1 - 5000
        AND NOT EXISTS (SELECT 1 FROM outbox o WHERE o.execution_id = e.id)
),
loss AS (
    SELECT max(seen_at) AS any_at,
        max(CASE WHEN seen_at <= ?1 - CASE WHEN EXISTS (
                SELECT 1 FROM execution e
                WHERE e.state IN ('pending', 'retrying') AND e.dispatch_no > 1
                    AND e.dispatched_at > ?1 - 10000)
            THEN 3600000 ELSE 60000 END THEN seen_at END) AS overdue_at
    FROM stream WHERE name LIKE '%\_WORK' ESCAPE '\'
),
lane AS (
    SELECT queue, priority, max(dispatched_at) AS claimed_up_to
    FROM execution WHERE claimed_at >= dispatched_at
    GROUP BY queue, priority
),
bad AS (
    SELECT 'execution ' || hex(id) || ': due for ' || (?1 - available_at)
        || ' ms, neither dispatched nor in the outbox' AS example
    FROM waiting WHERE dispatched_at IS NULL
    UNION ALL
    SELECT 'execution ' || hex(id) || ': dispatch ' || dispatch_no
        || ' was lost with its stream and not repeated'
    FROM waiting JOIN loss ON waiting.dispatched_at < loss.overdue_at
    UNION ALL
    SELECT 'execution ' || hex(id) || ': dispatch ' || dispatch_no || ' is '
        || (lane.claimed_up_to - dispatched_at) || ' ms older than one that was claimed'
    FROM waiting JOIN lane
        ON lane.queue = waiting.queue AND lane.priority = waiting.priority
        AND waiting.dispatched_at < lane.claimed_up_to - waiting.patience
    JOIN loss ON waiting.dispatched_at >= coalesce(loss.any_at, 0)
    UNION ALL
    SELECT 'fire ' || hex(f.id)
        || ': held although nothing else of its schedule is unfinished'
    FROM fire f
    WHERE f.held_behind IS NOT NULL AND f.released_at IS NULL AND f.planned_at <= ?1 - 5000
        AND NOT EXISTS (
            SELECT 1 FROM execution e
            WHERE e.schedule_id = f.schedule_id AND NOT e.held
                AND (e.ended_at IS NULL OR e.ended_at > ?1 - 5000))
)
SELECT (SELECT count(*) FROM execution WHERE state IN ('pending', 'retrying') AND (held OR available_at <= ?1)) AS looked_at,
    (SELECT count(*) FROM bad) AS violations, examples.example
FROM (SELECT 1) LEFT JOIN (SELECT example FROM bad ORDER BY example LIMIT ?2) AS examples
