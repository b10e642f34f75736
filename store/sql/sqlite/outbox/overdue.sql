-- ?1 stream, ?2 now, ?3 first wait, ?4 longest (ms), ?5 most per lane. The oldest of each lane.
-- What a lost stream held is the bulk re-dispatch's. A lane whose own outbox rows are that old
-- is behind: it sends what it has before anything is called lost.
-- Differs: no LATERAL; the lanes' lists are drawn by a correlated IN.
WITH lane AS MATERIALIZED (
    SELECT q.name AS queue, named.value AS priority,
        coalesce((SELECT seen_at FROM stream WHERE name = ?1), 0) AS seen_at
    FROM queue q CROSS JOIN json_each('["high","normal","low"]') named
    WHERE coalesce((SELECT o.created_at FROM outbox o
        WHERE o.queue = q.name AND o.priority = named.value ORDER BY o.id LIMIT 1) >= ?2 - ?3, 1)
)
SELECT e.id, e.queue, e.priority, e.dispatch_no, e.dispatched_at, e.lost_dispatches
FROM lane CROSS JOIN execution e ON e.id IN (
    SELECT late.id FROM execution late
    WHERE late.queue = lane.queue AND late.priority = lane.priority
        AND late.state IN ('pending', 'retrying') AND late.dispatched_at IS NOT NULL
        AND late.dispatched_at >= lane.seen_at AND late.dispatched_at < ?2 - ?3
        AND late.dispatched_at < ?2 - min(?4, ?3 << min(late.lost_dispatches, 20))
        AND NOT EXISTS (SELECT 1 FROM outbox o WHERE o.execution_id = late.id)
    ORDER BY late.dispatched_at LIMIT ?5)
UNION ALL
SELECT * FROM (
    SELECT e.id, e.queue, e.priority, e.dispatch_no, e.dispatched_at, e.lost_dispatches
    FROM execution e JOIN lane ON lane.queue = e.queue AND lane.priority = e.priority
    WHERE e.state = 'unknown' AND e.escalated_at IS NULL AND e.dispatched_at IS NOT NULL
        AND e.probe_id IS NULL -- a probe that runs has had its message
        AND e.dispatched_at >= lane.seen_at AND e.dispatched_at < ?2 - ?3
        AND e.dispatched_at < ?2 - min(?4, ?3 << min(e.lost_dispatches, 20))
        AND NOT EXISTS (SELECT 1 FROM outbox o WHERE o.execution_id = e.id)
    ORDER BY e.dispatched_at LIMIT ?5)
ORDER BY 5, 1
