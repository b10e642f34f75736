-- ?1 execution, ?2 claim_id, ?3 generation, ?4 timeout_ms, ?5 max_attempts, ?6 start deadline (ms),
-- ?7 on_lost, ?8 and ?9 first delay and cap of retries (ms), ?10 now
-- What is charged already stays so: claims that were lost before this.
UPDATE execution SET timeout_ms = CASE WHEN own_timeout THEN timeout_ms ELSE ?4 END,
    max_attempts = max(?5, attempt), start_deadline_at = scheduled_at + ?6, on_lost = ?7,
    retry_first_ms = ?8, retry_cap_ms = ?9,
    deadline_at = ?10 + 2000 + CASE WHEN own_timeout THEN timeout_ms ELSE ?4 END, policy_known = 1
WHERE id = ?1 AND claim_id = ?2 AND generation = ?3 AND state = 'running'
RETURNING timeout_ms, max_attempts, deadline_at
