-- ?1 name, ?2 created, ?3 sequence
UPDATE stream SET last_seq = max(last_seq, ?3) WHERE name = ?1 AND created = ?2
