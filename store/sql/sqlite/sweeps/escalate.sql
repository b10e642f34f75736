-- ?1 now, ?2 now less the age, ?3 limit. Sorted by its index; a sort by id would walk all rows.
UPDATE execution SET escalated_at = ?1
WHERE id IN (SELECT id FROM execution
    WHERE state = 'unknown' AND escalated_at IS NULL AND attempt_ended_at <= ?2
    ORDER BY attempt_ended_at LIMIT ?3)
