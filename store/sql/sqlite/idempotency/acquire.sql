-- ?1 key, ?2 token, ?3 now, ?4 when the lease ends
INSERT INTO idempotency (key, state, generation, token, acquired_at, expires_at)
VALUES (?1, 'in_progress', 1, ?2, ?3, ?4)
ON CONFLICT (key) DO UPDATE SET state = 'in_progress', generation = generation + 1, token = ?2,
    acquired_at = ?3, expires_at = ?4, result = NULL, settled_at = NULL
WHERE state = 'released' OR state = 'in_progress' AND token <> ?2 AND expires_at <= ?3
RETURNING generation
