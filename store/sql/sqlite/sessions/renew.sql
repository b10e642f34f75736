-- ?1 id, ?2 now, ?3 lease end, ?4 free since (null = not free), ?5 leaked, ?6 draining
UPDATE session SET renewed_at = ?2, expires_at = ?3, free_since = ?4, leaked = ?5,
    draining_since = CASE WHEN ?6 THEN coalesce(draining_since, ?2) END
WHERE id = ?1 AND state = 'live'
