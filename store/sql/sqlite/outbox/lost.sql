-- ?1 stream, ?2 limit
SELECT e.id FROM execution e JOIN stream s ON s.name = ?1
WHERE e.state IN ('pending', 'retrying') AND e.dispatched_at IS NOT NULL
    AND e.dispatched_at < s.seen_at
    AND NOT EXISTS (SELECT 1 FROM outbox o WHERE o.execution_id = e.id)
ORDER BY e.dispatched_at, e.id LIMIT ?2
