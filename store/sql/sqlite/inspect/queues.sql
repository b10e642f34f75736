-- ?1 now. Of what waits or runs; what has ended is not looked at.
WITH waiting (queue, pending, retrying, held, without_handler, oldest_due_at) AS (
    SELECT queue, sum(state = 'pending'), sum(state = 'retrying'), sum(held),
        count(CASE WHEN last_refusal = 'no_handler' THEN 1 END),
        min(CASE WHEN scheduled_at <= ?1 AND NOT held THEN scheduled_at END)
    FROM execution WHERE state IN ('pending', 'retrying') GROUP BY queue
),
running (queue, running) AS (
    SELECT queue, count(*) FROM execution WHERE state = 'running' GROUP BY queue
),
undecided (queue, unknown, escalated) AS (
    SELECT queue, count(*), count(escalated_at) FROM execution
    WHERE state = 'unknown' GROUP BY queue
),
sent (queue, outbox) AS (
    SELECT queue, count(*) FROM outbox GROUP BY queue
),
served (queue, workers) AS (
    SELECT v.value, count(DISTINCT s.id) FROM session s, json_each(s.queues) v
    WHERE s.state = 'live' GROUP BY v.value
)
SELECT q.name, q.created_at, coalesce(w.pending, 0) AS pending,
    coalesce(w.retrying, 0) AS retrying, coalesce(r.running, 0) AS running,
    coalesce(w.held, 0) AS held, coalesce(u.unknown, 0) AS unknown,
    coalesce(u.escalated, 0) AS escalated, coalesce(o.outbox, 0) AS outbox, coalesce(v.workers, 0) AS workers,
    coalesce(w.without_handler, 0) AS without_handler, w.oldest_due_at
FROM queue q
LEFT JOIN waiting w ON w.queue = q.name
LEFT JOIN running r ON r.queue = q.name
LEFT JOIN undecided u ON u.queue = q.name
LEFT JOIN sent o ON o.queue = q.name
LEFT JOIN served v ON v.queue = q.name
ORDER BY q.name
