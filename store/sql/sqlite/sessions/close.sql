-- ?1 id, ?2 now
-- With rows still running the session is lost, so that the sweep takes them over.
UPDATE session SET ended_at = ?2, state = CASE WHEN EXISTS (
        SELECT 1 FROM execution e WHERE e.state = 'running' AND e.session_id = ?1)
    THEN 'lost' ELSE 'closed' END
WHERE id = ?1 AND state = 'live'
RETURNING state
