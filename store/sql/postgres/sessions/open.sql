-- $1 id, $2 name, $3 host, $4 pid, $5 version, $6 queues and $7 jobs (JSON), $8 max_concurrent,
-- $9 lease (µs), $10 capabilities (JSON), $11 queues, $12 names and $13 hashes of definitions,
-- $14 jobs with a probe (JSON).
-- Queues in name order, so that two statements that add the same cannot deadlock.
WITH clock AS MATERIALIZED (
    SELECT clock_timestamp() AS now
),
queued AS (
    INSERT INTO queue (name, created_at)
    SELECT named.name, clock.now
    FROM (SELECT DISTINCT unnest($11::text[]) AS name) AS named, clock
    ORDER BY named.name
    ON CONFLICT (name) DO NOTHING
),
opened AS (
    INSERT INTO session (
        id, name, host, pid, version, queues, jobs, max_concurrent, state, opened_at, renewed_at,
        expires_at, capabilities, probes
    )
    SELECT $1, $2, $3, $4, $5, $6, $7, $8, 'live', now, now,
           now + $9::bigint * interval '1 microsecond', $10, $14
    FROM clock
    ON CONFLICT (id) DO NOTHING
    RETURNING id
)
INSERT INTO session_definition (session_id, name, hash)
SELECT opened.id, reported.name, reported.hash
FROM opened, unnest($12::text[], $13::text[]) AS reported (name, hash)
ON CONFLICT (session_id, name) DO NOTHING
