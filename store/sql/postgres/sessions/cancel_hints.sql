-- $1 session
SELECT claim_id FROM execution
WHERE session_id = $1 AND state = 'running' AND cancel_requested_at IS NOT NULL
ORDER BY id
