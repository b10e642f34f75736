-- What needs the oldest rows of this database: while it lasts, no row that died since can be cleaned
-- up, in no table. At most one row; the own session and vacuums, which need no rows, are left out.
--
-- Every role sees the transaction ids of every session, but only a member of its role or of
-- pg_read_all_stats sees when it began; and the database does not know since when a slot or a standby
-- needs what it needs. There age_us is null.
--
-- Whoever begins under an old transaction needs rows as old as that does: the cause is the one whose
-- own id it is, or else the one that began first.
WITH hold AS (
    SELECT 'session' AS kind, activity.pid, activity.application_name AS name,
           activity.usename AS owner, activity.xact_start AS since, activity.leader_pid,
           CASE WHEN age(activity.backend_xid) > coalesce(age(activity.backend_xmin), -1)
                THEN activity.backend_xid ELSE activity.backend_xmin END AS horizon,
           activity.backend_xid AS own
    FROM pg_stat_activity AS activity
    WHERE (activity.backend_xid IS NOT NULL OR activity.backend_xmin IS NOT NULL)
      AND activity.pid <> pg_backend_pid()
      AND (activity.datname = current_database()
           OR activity.datid IS NULL) -- a standby that reports what its readers need
      AND NOT EXISTS (SELECT FROM pg_stat_progress_vacuum AS vacuum WHERE vacuum.pid = activity.pid)
    UNION ALL
    SELECT 'prepared', NULL, gid, owner, prepared, NULL, transaction, transaction
    FROM pg_prepared_xacts
    WHERE database = current_database()
    UNION ALL
    SELECT 'slot', active_pid, slot_name, NULL, NULL, NULL, xmin, xmin
    FROM pg_replication_slots
    WHERE xmin IS NOT NULL
)
SELECT kind, pid, coalesce(name, '')::text AS name, coalesce(owner, '')::text AS owner,
       horizon::text AS horizon,
       (extract(epoch FROM clock_timestamp() - since) * 1000000)::bigint AS age_us
FROM hold
ORDER BY age(horizon) DESC, own = horizon DESC NULLS LAST, leader_pid NULLS FIRST,
         since NULLS LAST, pid
LIMIT 1
