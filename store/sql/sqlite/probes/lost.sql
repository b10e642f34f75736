-- ?1 now less the grace, ?2 limit. A session that is missing or has ended has no probe.
SELECT e.id FROM execution e LEFT JOIN session s ON s.id = e.probe_session_id AND s.state = 'live'
WHERE e.state = 'unknown' AND e.probe_id IS NOT NULL
    AND (s.id IS NULL OR e.probe_deadline_at <= ?1)
ORDER BY e.probe_deadline_at LIMIT ?2
