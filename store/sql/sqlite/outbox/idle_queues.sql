-- ?1 now, ?2 free at least since
SELECT DISTINCT q.value AS queue FROM session s CROSS JOIN json_each(s.queues) q
WHERE s.state = 'live' AND s.expires_at > ?1 AND s.free_since <= ?2
