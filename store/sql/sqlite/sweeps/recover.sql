-- ?1 execution, ?2 state, ?3 reason, ?4 attempts_exhausted, ?5 now, ?6 error
-- What is unknown waits for its probe's dispatch (probes/due.sql).
UPDATE execution SET state = ?2, reason = ?3, attempts_exhausted = ?4, error = ?6,
    available_at = CASE WHEN ?2 IN ('retrying', 'unknown') THEN ?5 ELSE available_at END,
    dispatched_at = CASE WHEN ?2 NOT IN ('retrying', 'unknown') THEN dispatched_at END,
    ended_at = CASE WHEN ?2 IN ('failed', 'cancelled') THEN ?5 END,
    attempt_ended_at = ?5, left_by = 'sweep', escalated_at = NULL, probe_no = 0
WHERE id = ?1
