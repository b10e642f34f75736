-- ?1 sessions (JSON array of hex ids) that ended, and that nothing names.
DELETE FROM session
WHERE id IN (SELECT unhex(value) FROM json_each(?1)) AND ended_at IS NOT NULL
    AND NOT EXISTS (SELECT 1 FROM session_definition r WHERE r.session_id = session.id)
