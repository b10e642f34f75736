-- ?1 fire, ?2 now
UPDATE execution SET held = 0, available_at = ?2
WHERE fire_id = ?1 AND held AND state IN ('pending', 'retrying')
RETURNING id
