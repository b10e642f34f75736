-- ?1 most ended ones
SELECT s.id, s.name, s.host, s.pid, s.version, s.queues, s.jobs, s.max_concurrent, s.state,
    s.opened_at, s.renewed_at, s.expires_at, s.ended_at, s.free_since, s.leaked, s.draining_since,
    (SELECT count(*) FROM execution e WHERE e.state = 'running' AND e.session_id = s.id) AS running
FROM session s
WHERE s.state = 'live' OR s.id IN (
    SELECT id FROM session WHERE state <> 'live' ORDER BY opened_at DESC, id DESC LIMIT ?1)
ORDER BY s.opened_at DESC, s.id DESC
