-- ?1 now less the retention, ?2 limit, ?3 when a key was recorded and ?4 its row, after which to look.
-- A key is never younger than its execution's end; one whose execution is gone is forgotten
-- by its own age. Nothing is forgotten that was not announced: see mark_keys.sql.
SELECT k.rowid AS place, k.created_at,
    e.id IS NULL OR coalesce(e.ended_at <= (SELECT min(?1, keys_forgotten_to) FROM ledger), 0) AS old
FROM submission_key k LEFT JOIN execution e ON e.id = k.execution_id
WHERE k.created_at <= (SELECT min(?1, keys_forgotten_to) FROM ledger)
    AND k.created_at >= ?3 AND (k.created_at, k.rowid) > (?3, ?4)
ORDER BY k.created_at, k.rowid LIMIT ?2
