-- ?1 the ledger's now (unused), ?2 examples to name.
WITH bad AS (
    SELECT 'fire ' || hex(f.id) || ': planned at ' || f.planned_at || ' under epoch ' || f.epoch
        || ', which lasted from ' || coalesce(t.started_at, 'never') || ' to '
        || coalesce(t.ended_at, 'now') AS example
    FROM fire f LEFT JOIN term t ON t.partition = f.partition AND t.epoch = f.epoch
    WHERE f.epoch IS NOT NULL AND (t.epoch IS NULL OR t.term_id IS NOT f.term_id
        OR f.planned_at < t.started_at OR f.planned_at > t.ended_at)
    UNION ALL
    SELECT 'partition ' || partition || ': epoch ' || next_epoch || ' started before epoch '
        || epoch || ' ended'
    FROM (
        SELECT partition, epoch, ended_at, lead(epoch) OVER later AS next_epoch,
            lead(started_at) OVER later AS next_started_at
        FROM term WINDOW later AS (PARTITION BY partition ORDER BY epoch)
    )
    WHERE next_epoch IS NOT NULL AND (ended_at IS NULL OR next_started_at < ended_at)
)
SELECT (SELECT (SELECT count(*) FROM fire WHERE epoch IS NOT NULL) + (SELECT count(*) FROM term)) AS looked_at,
    (SELECT count(*) FROM bad) AS violations, examples.example
FROM (SELECT 1) LEFT JOIN (SELECT example FROM bad ORDER BY example LIMIT ?2) AS examples
