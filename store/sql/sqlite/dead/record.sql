-- ?1 job, ?2 key, ?3 queue, ?4 reason, ?5 detail, ?6 payload, ?7 now, ?8 id, ?9 content type,
-- ?10 execution whose dispatch it was (null = a message)
INSERT INTO dead_letter (job, key, queue, reason, detail, payload, recorded_at, id, content_type,
    execution_id)
VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10)
ON CONFLICT DO NOTHING
