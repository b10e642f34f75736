-- ?1 now, ?2 paused lanes as a JSON array of [queue, priority], ?3 limit
-- Lane by lane, oldest first; the limit is dealt out to the lanes row by row, and with many
-- lanes each is asked for a few rows only.
-- Differs: no LATERAL; the lanes' rows are drawn by a correlated IN. No SKIP LOCKED; under the write lock no other relay is inside its claim.
-- `current` = the execution still waits for this very dispatch, or for its probe.
WITH RECURSIVE lane (queue, priority) AS (
    SELECT * FROM (
        SELECT queue, priority FROM outbox WHERE queue >= '' ORDER BY queue, priority LIMIT 1)
    UNION ALL
    SELECT next.queue, next.priority
    FROM lane CROSS JOIN outbox next ON next.id = coalesce(
        (SELECT later.id FROM outbox later
         WHERE later.queue = lane.queue AND later.priority > lane.priority
         ORDER BY later.priority LIMIT 1),
        (SELECT later.id FROM outbox later WHERE later.queue > lane.queue
         ORDER BY later.queue, later.priority LIMIT 1))
),
open_lane AS MATERIALIZED (
    SELECT queue, priority FROM lane
    WHERE NOT EXISTS (SELECT 1 FROM json_each(?2) paused
        WHERE paused.value ->> 0 = lane.queue AND paused.value ->> 1 = lane.priority)
),
available AS (
    SELECT o.id, row_number() OVER (PARTITION BY o.queue, o.priority ORDER BY o.id) AS place
    FROM open_lane CROSS JOIN outbox o ON o.id IN (
        SELECT waiting.id FROM outbox waiting
        WHERE waiting.queue = open_lane.queue AND waiting.priority = open_lane.priority
            AND (waiting.leased_until IS NULL OR waiting.leased_until <= ?1)
        ORDER BY waiting.id
        LIMIT (SELECT min(?3, max(8 * ?3 / max(count(*), 1), 1)) FROM open_lane))
)
SELECT o.id AS outbox_id, o.queue AS lane_queue, o.priority AS lane_priority,
    o.dispatch_no AS outbox_dispatch_no, l.id AS ledger_id,
    ((e.state IN ('pending', 'retrying') OR e.state = 'unknown' AND e.escalated_at IS NULL)
        AND e.dispatch_no = o.dispatch_no AND e.dispatched_at IS NOT NULL) IS TRUE AS current,
    e.job, e.fire_id, o.execution_id, e.shard_index, e.shard_total, e.schedule_version,
    e.scheduled_at, e.start_deadline_at, e.timeout_ms, e.traceparent, e.tracestate,
    e.dispatched_at
FROM (SELECT id FROM available ORDER BY place, id LIMIT ?3) dealt
CROSS JOIN outbox o ON o.id = dealt.id
CROSS JOIN ledger l LEFT JOIN execution e ON e.id = o.execution_id
ORDER BY o.id
