-- ?1 name, ?2 created, ?3 last_seq, ?4 now
INSERT INTO stream (name, created, last_seq, seen_at) VALUES (?1, ?2, ?3, ?4)
ON CONFLICT DO NOTHING
