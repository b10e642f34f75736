-- ?1 now less the retention, ?2 limit. Dead letters that a person looked after that long ago.
DELETE FROM dead_letter
WHERE rowid IN (
    SELECT d.rowid FROM dead_letter d
    WHERE d.resolved_at IS NOT NULL AND d.resolved_at < ?1
    ORDER BY d.resolved_at LIMIT ?2)
