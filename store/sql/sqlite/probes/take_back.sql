-- ?1 execution, ?2 when it is due again, ?3 probes that did not run after all
UPDATE execution SET probe_no = probe_no - ?3, probe_id = NULL, probe_session_id = NULL,
    probe_claimed_at = NULL, probe_deadline_at = NULL, available_at = ?2, dispatched_at = NULL
WHERE id = ?1
