-- ?1 name
SELECT id FROM schedule WHERE name = ?1 AND deleted_at IS NULL
