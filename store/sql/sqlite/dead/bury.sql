-- ?1 execution, ?2 dispatch_no, ?3 detail, ?4 now
-- Only what waits for this very dispatch; the rest was overtaken.
UPDATE execution SET state = 'failed', reason = 'undeliverable', error = ?3, ended_at = ?4
WHERE id = ?1 AND dispatch_no = ?2 AND dispatched_at IS NOT NULL
    AND state IN ('pending', 'retrying')
RETURNING job, queue, content_type
