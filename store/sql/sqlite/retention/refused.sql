-- ?1 now less the retention, ?2 the first id that is too young, ?3 limit, ?4 the first id that no clock has
-- made yet. Refused results of which the execution is gone.
DELETE FROM fenced_result
WHERE rowid IN (
    SELECT place FROM (
        SELECT r.rowid AS place FROM fenced_result r
        WHERE r.execution_id < ?2 AND r.recorded_at < ?1
            AND NOT EXISTS (SELECT 1 FROM execution e WHERE e.id = r.execution_id)
        ORDER BY r.execution_id LIMIT ?3)
    UNION ALL
    SELECT place FROM (
        SELECT r.rowid AS place FROM fenced_result r
        WHERE r.execution_id > ?4 AND r.recorded_at < ?1
            AND NOT EXISTS (SELECT 1 FROM execution e WHERE e.id = r.execution_id)
        ORDER BY r.execution_id LIMIT ?3)
    LIMIT ?3)
