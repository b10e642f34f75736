-- ?1 execution: whether a live worker of its queue has a probe for its job.
SELECT EXISTS (
    SELECT 1 FROM session s
    WHERE s.state = 'live'
        AND EXISTS (SELECT 1 FROM json_each(s.queues) q WHERE q.value = e.queue)
        AND EXISTS (SELECT 1 FROM json_each(s.probes) p WHERE p.value = e.job)
    ) AS elsewhere
FROM execution e WHERE e.id = ?1
