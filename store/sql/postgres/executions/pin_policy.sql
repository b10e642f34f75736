-- $1 execution, $2 claim_id, $3 generation, $4 timeout (ms), $5 attempts, $6 start deadline (ms),
-- $7 on_lost, $8 and $9 first delay and cap of retries (ms). The fence counts again after a wait for
-- the row; `started_at` is written by results only, and a handler starts after this.
UPDATE execution
SET timeout_ms        = CASE WHEN own_timeout THEN timeout_ms ELSE $4 END,
    -- What is charged already stays so: claims that were lost before this.
    max_attempts      = greatest($5, attempt),
    start_deadline_at = scheduled_at + $6::bigint * interval '1 millisecond',
    on_lost           = $7,
    retry_first_ms    = $8,
    retry_cap_ms      = $9,
    deadline_at       = clock_timestamp() + interval '2 seconds'
                        + CASE WHEN own_timeout THEN timeout_ms ELSE $4 END
                          * interval '1 millisecond',
    policy_known      = true
WHERE id = $1 AND claim_id = $2 AND generation = $3 AND state = 'running'
RETURNING timeout_ms, max_attempts, deadline_at
