-- ?1 now less the retention, ?2 limit
-- A key is never younger than its execution's end; one whose execution is gone is forgotten
-- by its own age. Nothing is forgotten that was not announced: see mark_keys.sql.
DELETE FROM submission_key
WHERE rowid IN (
    SELECT k.rowid FROM submission_key k LEFT JOIN execution e ON e.id = k.execution_id
    WHERE k.created_at <= (SELECT min(?1, keys_forgotten_to) FROM ledger)
      AND (e.id IS NULL OR e.ended_at <= (SELECT min(?1, keys_forgotten_to) FROM ledger))
    ORDER BY k.created_at LIMIT ?2)
