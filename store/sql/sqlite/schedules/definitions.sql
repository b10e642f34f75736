-- ?1 names (JSON), ?2 a minute ago. The few sessions that count are the start: those that were,
-- stay in the table (CROSS JOIN keeps the order).
WITH counted (id, live) AS (
    SELECT id, 1 FROM session WHERE state = 'live'
    UNION ALL
    SELECT id, 0 FROM session WHERE ended_at > ?2
),
reported (name, hash, live) AS (
    SELECT r.name, r.hash, max(c.live)
    FROM counted c CROSS JOIN session_definition r ON r.session_id = c.id
    WHERE r.name IN (SELECT value FROM json_each(?1))
    GROUP BY r.name, r.hash
)
SELECT d.name, d.hash, d.body, d.first_seen_at, coalesce(r.live, 0) AS live,
    r.name IS NOT NULL OR d.noted_at > ?2 AS recent,
    NOT EXISTS (SELECT 1 FROM schedule s WHERE s.name = d.name AND s.deleted_at IS NULL)
        AND coalesce((SELECT s.retired FROM schedule s
            WHERE s.name = d.name AND s.deleted_at IS NOT NULL
            ORDER BY s.deleted_at DESC LIMIT 1), 0) AS retired
FROM definition d LEFT JOIN reported r ON r.name = d.name AND r.hash = d.hash
WHERE d.name IN (SELECT value FROM json_each(?1))
ORDER BY d.name, d.first_seen_at, d.hash
