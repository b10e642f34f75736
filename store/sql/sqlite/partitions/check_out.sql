-- ?1 id, ?2 now
-- A lease that could not be given back is still its: without the row, a change of the map would
-- take the process for one that cannot follow.
DELETE FROM ticker
WHERE id = ?1
    AND NOT EXISTS (SELECT 1 FROM lease WHERE lease.holder = ticker.holder AND expires_at > ?2)
