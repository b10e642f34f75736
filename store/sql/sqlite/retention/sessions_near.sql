-- ?1 the execution after which to look, ?2 the first id that is too young, ?3 how many to look at, ?4 the
-- first id that no clock has made yet. The last of them, if there are so many.
SELECT id FROM (
    SELECT id FROM (SELECT id FROM execution WHERE id > ?1 AND id < ?2 ORDER BY id LIMIT ?3)
    UNION ALL
    SELECT id FROM (SELECT id FROM execution WHERE id > max(?1, ?4) ORDER BY id LIMIT ?3)
    ORDER BY id LIMIT ?3)
LIMIT 1 OFFSET ?3 - 1
