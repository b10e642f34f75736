-- $1 id, $2 name, $3 host, $4 pid, $5 version, $6 queues and $7 jobs (JSON), $8 max_concurrent,
-- $9 lease (µs)
INSERT INTO session (
    id, name, host, pid, version, queues, jobs, max_concurrent, state, opened_at, renewed_at,
    expires_at
)
SELECT $1, $2, $3, $4, $5, $6, $7, $8, 'live', now, now,
       now + $9::bigint * interval '1 microsecond'
FROM (SELECT clock_timestamp() AS now) AS clock
ON CONFLICT (id) DO NOTHING
