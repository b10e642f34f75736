-- ?1 queue, ?2 now
INSERT INTO queue (name, created_at) VALUES (?1, ?2) ON CONFLICT DO NOTHING
