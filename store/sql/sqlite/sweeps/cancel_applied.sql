-- ?1 fire, ?2 now
UPDATE fire SET cancel_applied_at = ?2 WHERE id = ?1
