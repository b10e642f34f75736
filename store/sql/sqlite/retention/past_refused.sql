-- ?1, ?2 as in past_attempts.sql
DELETE FROM fenced_result WHERE execution_id = ?1 AND generation <= ?2
