-- ?1 job, ?2 key, ?3 queue, ?4 reason, ?5 detail, ?6 payload, ?7 now
INSERT INTO dead_letter (job, key, queue, reason, detail, payload, recorded_at)
VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7)
ON CONFLICT DO NOTHING
