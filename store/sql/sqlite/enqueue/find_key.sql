-- ?1 job, ?2 key
SELECT execution_id FROM submission_key WHERE job = ?1 AND key = ?2
