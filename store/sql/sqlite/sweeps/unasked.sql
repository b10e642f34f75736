-- ?1 fire, ?2 limit: its executions that have had no request to cancel
SELECT id FROM execution
WHERE fire_id = ?1 AND (state IN ('pending', 'retrying')
    OR state IN ('running', 'unknown') AND cancel_requested_at IS NULL)
ORDER BY id LIMIT ?2
