-- ?1 execution, ?2 dispatch_no, ?3 now
-- `idle` = a worker that serves it had free slots ever since before the dispatch.
-- What is unknown waits for a probe: its dispatches never count.
SELECT e.state = 'unknown' AS unknown, e.unclaimed_dispatches, e.state <> 'unknown' AND EXISTS (
        SELECT 1 FROM session s
        WHERE s.state = 'live' AND s.expires_at > ?3
            AND s.opened_at <= e.dispatched_at AND s.free_since <= e.dispatched_at
            AND EXISTS (SELECT 1 FROM json_each(s.queues) q WHERE q.value = e.queue)
            AND EXISTS (SELECT 1 FROM json_each(s.jobs) j WHERE j.value = e.job)) AS idle
FROM execution e
WHERE e.id = ?1 AND e.dispatch_no = ?2 AND e.dispatched_at IS NOT NULL
    AND (e.state IN ('pending', 'retrying')
        OR e.state = 'unknown' AND e.escalated_at IS NULL AND e.probe_id IS NULL)
    AND NOT EXISTS (SELECT 1 FROM outbox o WHERE o.execution_id = e.id)
