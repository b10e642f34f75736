-- ?1 most executions, but at least one fire, ?2 the schedule after which to look, ?3 most fires to look at.
-- Let go is a fire of whose schedule nothing is unfinished but what is held; the oldest, should there
-- be several. So is one that is over (cancelled or expired as it was held: its row is not looked at
-- again), and any of a schedule that allows overlaps by now.
-- One row more, without an id, tells the schedule looked at last if there may be more behind it.
WITH near AS MATERIALIZED (
    SELECT id, schedule_id, shard_total FROM fire INDEXED BY fire_held
    WHERE held_behind IS NOT NULL AND released_at IS NULL AND schedule_id > ?2
    ORDER BY schedule_id, id LIMIT ?3
),
held AS (
    SELECT near.id, near.shard_total,
        row_number() OVER (PARTITION BY near.schedule_id ORDER BY near.id) = 1 AS oldest,
        coalesce(s.overlap = 'allow', 0) AS allowed,
        EXISTS (
            SELECT 1 FROM execution e
            WHERE e.schedule_id = near.schedule_id
                AND e.state IN ('pending', 'running', 'retrying', 'unknown')
                AND NOT e.held) AS behind,
        NOT EXISTS (
            SELECT 1 FROM execution e
            WHERE e.fire_id = near.id
                AND e.state IN ('pending', 'running', 'retrying', 'unknown')) AS over
    FROM near LEFT JOIN schedule s ON s.id = near.schedule_id
),
free AS (
    SELECT id, sum(shard_total) OVER (ORDER BY id) - shard_total AS before FROM held
    WHERE over OR allowed OR oldest AND NOT behind
)
SELECT id, NULL AS last FROM free WHERE before < ?1
UNION ALL
SELECT NULL, max(schedule_id) FROM near HAVING count(*) = ?3
ORDER BY id
