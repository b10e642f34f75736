-- ?1 now less the retention, ?2 limit. Tombstones of that age of which nothing is left.
SELECT id FROM schedule
WHERE deleted_at IS NOT NULL AND deleted_at < ?1
    AND NOT EXISTS (SELECT 1 FROM fire f WHERE f.schedule_id = schedule.id)
    AND NOT EXISTS (SELECT 1 FROM execution e
        WHERE e.schedule_id = schedule.id
            AND e.state IN ('pending', 'running', 'retrying', 'unknown'))
ORDER BY deleted_at LIMIT ?2
