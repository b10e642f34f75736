-- ?1 execution, ?2 dispatch_no, ?3 now
-- Matches the dispatch that the message named, once: a repeat finds it cleared.
UPDATE execution SET defer_count = defer_count + 1, last_refusal = 'no_handler',
    available_at = ?3 + min(60000, 1000 << min(defer_count, 6)), dispatched_at = NULL,
    lost_dispatches = 0, unclaimed_dispatches = 0 -- a worker has answered
WHERE id = ?1 AND dispatch_no = ?2 AND dispatched_at IS NOT NULL
    -- The dispatch of a probe needs a worker of its job as well.
    AND (state IN ('pending', 'retrying')
        OR state = 'unknown' AND probe_id IS NULL AND escalated_at IS NULL)
