-- ?1 key
SELECT state, generation, token, result, expires_at FROM idempotency WHERE key = ?1
