-- ?1 now, ?2 limit
UPDATE session SET state = 'lost', ended_at = ?1
WHERE id IN (SELECT id FROM session WHERE state = 'live' AND expires_at <= ?1 ORDER BY id LIMIT ?2)
RETURNING id, name
