-- ?1 now
-- A ticker that can follow a change of the map has said so before it bid for its first term.
SELECT DISTINCT coalesce(holder, '') AS holder
FROM lease
WHERE expires_at > ?1
    AND NOT EXISTS (SELECT 1 FROM ticker WHERE ticker.holder = lease.holder)
ORDER BY 1
