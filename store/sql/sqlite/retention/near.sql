-- ?1 the execution after which to look, ?2 the first id that is too young, ?3 limit, ?4 the first id that no
-- clock has made yet; why: see postgres/retention/fires.sql.
SELECT id, fire_id FROM (
    SELECT id, fire_id FROM execution WHERE id > ?1 AND id < ?2 ORDER BY id LIMIT ?3)
UNION ALL
SELECT id, fire_id FROM (
    SELECT id, fire_id FROM execution WHERE id > max(?1, ?4) ORDER BY id LIMIT ?3)
ORDER BY id LIMIT ?3
