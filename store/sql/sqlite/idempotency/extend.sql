-- ?1 key, ?2 token, ?3 generation, ?4 when the lease ends
UPDATE idempotency SET expires_at = ?4
WHERE key = ?1 AND token = ?2 AND generation = ?3 AND state = 'in_progress'
