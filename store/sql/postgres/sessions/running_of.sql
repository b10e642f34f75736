SELECT id, claim_id, generation, job,
       (extract(epoch FROM clock_timestamp() - claimed_at) * 1000000)::bigint AS claimed_ago_us
FROM execution
WHERE session_id = $1 AND state = 'running'
ORDER BY id
