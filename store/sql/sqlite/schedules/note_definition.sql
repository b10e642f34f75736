-- ?1 name, ?2 hash, ?3 body, ?4 now
INSERT INTO definition (name, hash, body, first_seen_at, noted_at) VALUES (?1, ?2, ?3, ?4, ?4)
ON CONFLICT (name, hash) DO UPDATE SET noted_at = max(noted_at, excluded.noted_at)
