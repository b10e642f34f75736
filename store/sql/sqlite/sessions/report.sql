-- ?1 session, ?2 name, ?3 hash
INSERT INTO session_definition (session_id, name, hash) VALUES (?1, ?2, ?3) ON CONFLICT DO NOTHING
