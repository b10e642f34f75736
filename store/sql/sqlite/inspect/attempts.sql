-- ?1 execution
SELECT generation, attempt, session_id, claimed_at, started_at, ended_at, reason, error
FROM attempt WHERE execution_id = ?1 ORDER BY generation
