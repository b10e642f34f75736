-- ?1 settled, or expired, before, ?2 limit
DELETE FROM idempotency
WHERE key IN (SELECT key FROM idempotency WHERE coalesce(settled_at, expires_at) <= ?1
    ORDER BY coalesce(settled_at, expires_at) LIMIT ?2)
