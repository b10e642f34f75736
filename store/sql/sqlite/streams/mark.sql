-- ?1 name
SELECT created, last_seq, seen_at FROM stream WHERE name = ?1
