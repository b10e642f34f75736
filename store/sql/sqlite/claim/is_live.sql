-- ?1 session
SELECT 1 AS live FROM session WHERE id = ?1 AND state = 'live'
