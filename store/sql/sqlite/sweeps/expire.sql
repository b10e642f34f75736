-- ?1 now, ?2 limit. Two ranges, each with an index of its own (execution_start_deadline,
-- execution_exhausted). Without an attempt left the reason of the last one stands.
UPDATE execution SET ended_at = ?1,
    state = CASE WHEN attempt >= max_attempts OR last_refusal = 'no_handler'
        THEN 'failed' ELSE 'expired' END,
    reason = CASE WHEN attempt >= max_attempts THEN reason
        WHEN last_refusal = 'no_handler' THEN 'no_handler' END,
    attempts_exhausted = attempt >= max_attempts
WHERE id IN (
    SELECT id FROM execution WHERE state IN ('pending', 'retrying') AND start_deadline_at <= ?1
    UNION
    SELECT id FROM execution WHERE state IN ('pending', 'retrying') AND attempt >= max_attempts
    ORDER BY id LIMIT ?2)
