UPDATE schedule SET deleted_at = clock_timestamp() WHERE name = $1 AND deleted_at IS NULL
RETURNING id
