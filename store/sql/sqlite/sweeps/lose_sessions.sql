-- ?1 now, ?2 limit. Sorted by its index; a sort by id would walk all sessions that ever were.
UPDATE session SET state = 'lost', ended_at = ?1
WHERE id IN (
    SELECT id FROM session WHERE state = 'live' AND expires_at <= ?1
    ORDER BY expires_at LIMIT ?2)
RETURNING id, name
