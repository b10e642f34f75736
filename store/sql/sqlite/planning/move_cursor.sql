-- ?1 schedule, ?2 version, ?3 cursor, ?4 new cursor, ?5 new next_at, ?6 fault, ?7 now, ?8 partition,
-- ?9 overlap policy
UPDATE schedule SET cursor = ?4, next_at = ?5, ended = (?5 IS NULL AND ?6 IS NULL), fault = ?6
WHERE id = ?1 AND partition = ?8 AND version = ?2 AND cursor = ?3 AND enabled
    AND overlap = ?9 AND deleted_at IS NULL AND ?4 >= cursor AND ?4 <= ?7
