-- $1 how many ended ones. All live ones, and the newest ended ones.
WITH shown AS (
    (SELECT * FROM session WHERE state = 'live')
    UNION ALL
    (SELECT * FROM session WHERE state <> 'live' ORDER BY opened_at DESC, id DESC LIMIT $1)
)
SELECT shown.id, shown.name, shown.host, shown.pid, shown.version, shown.queues, shown.jobs,
       shown.max_concurrent, shown.state, shown.opened_at, shown.renewed_at, shown.expires_at,
       shown.ended_at, shown.free_since, shown.leaked, shown.draining_since,
       (
           SELECT count(*) FROM execution
           WHERE execution.session_id = shown.id AND execution.state = 'running'
       ) AS running
FROM shown
ORDER BY shown.opened_at DESC, shown.id DESC
