-- $1 execution, $2 probe id: it did not run, or was stopped before it said anything.
UPDATE execution
SET probe_no          = probe_no - 1,
    probe_id          = NULL,
    probe_session_id  = NULL,
    probe_claimed_at  = NULL,
    probe_deadline_at = NULL,
    available_at      = clock_timestamp(),
    dispatched_at     = NULL
WHERE id = $1 AND state = 'unknown' AND probe_id = $2
