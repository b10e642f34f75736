-- ?1 the ledger's now, ?2 examples to name.
-- A dispatch without an outbox row is with the broker, unless its stream was seen lost since:
-- then a relay has 60 s to send it again.
WITH bad AS (
    SELECT 'execution ' || hex(e.id) || ': due for ' || (?1 - e.available_at)
        || ' ms, neither dispatched nor in the outbox' AS example
    FROM execution e
    WHERE e.state IN ('pending', 'retrying') AND e.available_at <= ?1 - 5000
        AND e.dispatched_at IS NULL
        AND NOT EXISTS (SELECT 1 FROM outbox o WHERE o.execution_id = e.id)
    UNION ALL
    SELECT 'execution ' || hex(e.id) || ': dispatch ' || e.dispatch_no || ' was lost with stream '
        || s.name || ' and not repeated'
    FROM execution e JOIN stream s ON s.name LIKE '%\_WORK' ESCAPE '\'
    WHERE e.state IN ('pending', 'retrying') AND e.dispatched_at < s.seen_at
        AND s.seen_at <= ?1 - 60000
        AND NOT EXISTS (SELECT 1 FROM outbox o WHERE o.execution_id = e.id)
)
SELECT (SELECT count(*) FROM execution WHERE state IN ('pending', 'retrying') AND available_at <= ?1) AS looked_at,
    (SELECT count(*) FROM bad) AS violations, examples.example
FROM (SELECT 1) LEFT JOIN (SELECT example FROM bad ORDER BY example LIMIT ?2) AS examples
