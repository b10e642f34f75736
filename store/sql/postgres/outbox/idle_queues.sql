-- $1 for so long (µs)
SELECT DISTINCT served.queue
FROM session
CROSS JOIN LATERAL jsonb_array_elements_text(session.queues::jsonb) AS served (queue)
WHERE session.state = 'live' AND session.expires_at > (SELECT clock_timestamp())
  AND session.free_since <= clock_timestamp() - $1::bigint * interval '1 microsecond'
