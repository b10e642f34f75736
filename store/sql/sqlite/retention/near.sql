-- ?1 the execution after which to look, ?2 the first id that is too young, ?3 limit
SELECT id, fire_id FROM execution WHERE id > ?1 AND id < ?2 ORDER BY id LIMIT ?3
