-- $1 session
SELECT claim_id,
       (extract(epoch FROM clock_timestamp() - cancel_requested_at) * 1000000)::bigint AS ago_us
FROM execution
WHERE session_id = $1 AND state = 'running' AND cancel_requested_at IS NOT NULL
ORDER BY id
