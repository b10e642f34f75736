-- ?1, ?2 as in past_attempts.sql
UPDATE execution SET attempts_gone = ?2 WHERE id = ?1
