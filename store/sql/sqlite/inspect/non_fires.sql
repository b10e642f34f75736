-- ?1 schedule, ?2 since. Ranges are disjoint: at most one that began before reaches into it.
SELECT reason, count(*) AS ranges, sum(count) AS instants, max(until_at) AS until_at
FROM non_fire
WHERE schedule_id = ?1
    AND from_at >= coalesce(
        (SELECT max(from_at) FROM non_fire WHERE schedule_id = ?1 AND from_at < ?2), ?2
    )
    AND until_at >= ?2
GROUP BY reason
ORDER BY reason
