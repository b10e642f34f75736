-- ?1 partition, ?2 epoch, ?3 term_id, ?4 holder, ?5 now
INSERT INTO term (partition, epoch, term_id, holder, started_at) VALUES (?1, ?2, ?3, ?4, ?5)
