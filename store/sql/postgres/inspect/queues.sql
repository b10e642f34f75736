-- Of what waits or runs; what has ended is not looked at.
WITH clock AS MATERIALIZED (
    SELECT clock_timestamp() AS now
),
waiting AS MATERIALIZED (
    SELECT execution.queue,
           count(*) FILTER (WHERE execution.state = 'pending') AS pending,
           count(*) FILTER (WHERE execution.state = 'retrying') AS retrying,
           count(*) FILTER (WHERE execution.held) AS held,
           count(*) FILTER (WHERE execution.last_refusal = 'no_handler') AS without_handler,
           min(execution.scheduled_at) FILTER (
               WHERE execution.scheduled_at <= clock.now AND NOT execution.held
           ) AS oldest_due_at
    FROM execution, clock
    WHERE execution.state IN ('pending', 'retrying')
    GROUP BY execution.queue
),
running AS MATERIALIZED (
    SELECT queue, count(*) AS running FROM execution WHERE state = 'running' GROUP BY queue
),
undecided AS MATERIALIZED (
    SELECT queue, count(*) AS unknown, count(escalated_at) AS escalated FROM execution
    WHERE state = 'unknown'
    GROUP BY queue
),
sent AS MATERIALIZED (
    SELECT queue, count(*) AS outbox FROM outbox GROUP BY queue
),
served AS MATERIALIZED (
    SELECT served.name AS queue, count(DISTINCT session.id) AS workers
    FROM session, json_array_elements_text(session.queues::json) AS served (name)
    WHERE session.state = 'live'
    GROUP BY served.name
)
SELECT queue.name, queue.created_at,
       coalesce(waiting.pending, 0) AS pending,
       coalesce(waiting.retrying, 0) AS retrying,
       coalesce(running.running, 0) AS running,
       coalesce(waiting.held, 0) AS held,
       coalesce(undecided.unknown, 0) AS unknown,
       coalesce(undecided.escalated, 0) AS escalated,
       coalesce(sent.outbox, 0) AS outbox,
       coalesce(served.workers, 0) AS workers,
       coalesce(waiting.without_handler, 0) AS without_handler,
       waiting.oldest_due_at
FROM queue
LEFT JOIN waiting ON waiting.queue = queue.name
LEFT JOIN running ON running.queue = queue.name
LEFT JOIN undecided ON undecided.queue = queue.name
LEFT JOIN sent ON sent.queue = queue.name
LEFT JOIN served ON served.queue = queue.name
ORDER BY queue.name COLLATE "C"
