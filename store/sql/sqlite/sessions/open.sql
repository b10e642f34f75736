-- ?1 id, ?2 name, ?3 host, ?4 pid, ?5 version, ?6 queues, ?7 jobs, ?8 max_concurrent, ?9 now,
-- ?10 lease end, ?11 capabilities, ?12 jobs with a probe
INSERT INTO session (id, name, host, pid, version, queues, jobs, max_concurrent, state, opened_at,
    renewed_at, expires_at, capabilities, probes)
VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, 'live', ?9, ?9, ?10, ?11, ?12)
ON CONFLICT DO NOTHING
