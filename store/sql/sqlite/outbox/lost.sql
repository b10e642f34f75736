-- ?1 stream, ?2 limit
-- Differs: no LATERAL; the lanes' lists are drawn by a correlated IN.
SELECT id FROM (
    SELECT e.id, e.dispatched_at
    FROM stream s CROSS JOIN queue q
    CROSS JOIN (SELECT value AS priority FROM json_each('["high","normal","low"]')) lane
    CROSS JOIN execution e ON e.id IN (
        SELECT lost.id FROM execution lost
        WHERE lost.queue = q.name AND lost.priority = lane.priority
            AND lost.state IN ('pending', 'retrying') AND lost.dispatched_at IS NOT NULL
            AND lost.dispatched_at < s.seen_at
            AND NOT EXISTS (SELECT 1 FROM outbox o WHERE o.execution_id = lost.id)
        ORDER BY lost.dispatched_at LIMIT ?2)
    WHERE s.name = ?1
    UNION ALL
    SELECT e.id, e.dispatched_at
    FROM stream s CROSS JOIN execution e
    WHERE s.name = ?1 AND e.state = 'unknown' AND e.escalated_at IS NULL
        AND e.probe_id IS NULL -- a probe that runs has had its message
        AND e.dispatched_at IS NOT NULL AND e.dispatched_at < s.seen_at
        AND NOT EXISTS (SELECT 1 FROM outbox o WHERE o.execution_id = e.id)
)
ORDER BY dispatched_at, id LIMIT ?2
