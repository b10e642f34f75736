-- ?1 now less the grace, ?2 limit
-- A missing session counts as lost. `+` keeps the sort off the primary key, which would be walked
-- from end to end: the running rows have an index of their own.
SELECT e.id, e.job, e.attempt, e.max_attempts, e.on_lost, e.cancel_requested_at,
    s.id IS NULL AS worker_lost
FROM execution e LEFT JOIN session s ON s.id = e.session_id AND s.state = 'live'
WHERE e.state = 'running' AND (s.id IS NULL OR e.deadline_at <= ?1)
ORDER BY +e.id LIMIT ?2
