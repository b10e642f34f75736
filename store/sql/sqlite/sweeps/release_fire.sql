-- ?1 fire, ?2 now
UPDATE fire SET released_at = ?2 WHERE id = ?1
