-- ?1 limit
SELECT id FROM fire
WHERE cancel_requested_at IS NOT NULL AND cancel_applied_at IS NULL
ORDER BY cancel_requested_at, id LIMIT ?1
