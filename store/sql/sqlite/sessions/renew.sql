-- ?1 id, ?2 now, ?3 lease end
UPDATE session SET renewed_at = ?2, expires_at = ?3 WHERE id = ?1 AND state = 'live'
