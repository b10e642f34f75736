-- ?1 name, ?2 created, ?3 last_seq, ?4 now, ?5 created found, ?6 last_seq found
UPDATE stream SET created = ?2, last_seq = ?3, seen_at = ?4
WHERE name = ?1 AND created = ?5 AND last_seq = ?6
