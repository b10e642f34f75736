-- ?1 job, ?2 key, ?3 execution, ?4 now
INSERT INTO submission_key (job, key, execution_id, created_at) VALUES (?1, ?2, ?3, ?4)
ON CONFLICT DO NOTHING
