-- ?1 session
SELECT claim_id, cancel_requested_at FROM execution
WHERE state = 'running' AND session_id = ?1 AND cancel_requested_at IS NOT NULL
ORDER BY +id
