-- ?1 name, ?2 now
UPDATE schedule SET deleted_at = ?2 WHERE name = ?1 AND deleted_at IS NULL RETURNING id
