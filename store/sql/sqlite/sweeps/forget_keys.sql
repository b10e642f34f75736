-- ?1 now less the retention, ?2 limit
-- A key is never younger than its execution's end; one whose execution is gone is forgotten
-- by its own age.
DELETE FROM submission_key
WHERE rowid IN (
    SELECT k.rowid FROM submission_key k LEFT JOIN execution e ON e.id = k.execution_id
    WHERE k.created_at <= ?1 AND (e.id IS NULL OR e.ended_at <= ?1)
    ORDER BY k.created_at LIMIT ?2)
