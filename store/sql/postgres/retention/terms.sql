-- $1 retention (µs), $2 limit, $3 most fires to look at. Terms that no fire names any more: theirs
-- were due before the term's end, and so are their ids. Where more than $3 such fires are left
-- none goes.
WITH old AS MATERIALIZED (
    SELECT before,
           (
               lpad(to_hex(greatest(floor(extract(epoch FROM before) * 1000), 0)::bigint), 12, '0')
               || repeat('0', 20)
           )::uuid AS id
    FROM (SELECT clock_timestamp() - $1::bigint * interval '1 microsecond' AS before) AS clock
),
-- The one in force, or the last, is never among them.
ended AS MATERIALIZED (
    SELECT oldest.partition, oldest.epoch
    FROM lease
    CROSS JOIN LATERAL (
        SELECT term.partition, term.epoch, term.ended_at
        FROM term
        WHERE term.partition = lease.partition AND term.epoch < lease.epoch
        ORDER BY term.epoch
        LIMIT $2
    ) AS oldest
    WHERE oldest.ended_at < (SELECT before FROM old)
    ORDER BY oldest.partition, oldest.epoch
    LIMIT $2
),
near AS MATERIALIZED (
    SELECT partition, epoch
    FROM fire
    WHERE id < (SELECT id FROM old) AND (SELECT true FROM ended LIMIT 1)
    ORDER BY id
    LIMIT $3
),
unnamed AS MATERIALIZED (
    SELECT partition, epoch FROM ended
    EXCEPT
    SELECT partition, epoch FROM near
),
target AS MATERIALIZED (
    SELECT term.partition, term.epoch
    FROM term
    JOIN unnamed ON unnamed.partition = term.partition AND unnamed.epoch = term.epoch
    WHERE (SELECT count(*) FROM near) < $3
    ORDER BY term.partition, term.epoch
    FOR UPDATE OF term SKIP LOCKED
)
DELETE FROM term
USING target
WHERE term.partition = target.partition AND term.epoch = target.epoch
