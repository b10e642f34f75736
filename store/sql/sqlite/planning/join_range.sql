-- ?1 schedule, ?2 version, ?3 reason, ?4 the instant, ?5 the one before it, ?6 now
-- What did not fire joins the range that ends at the instant before it, if that has the same reason.
UPDATE non_fire SET until_at = ?4, count = count + 1, recorded_at = ?6
WHERE schedule_id = ?1 AND until_at = ?5 AND reason = ?3 AND schedule_version = ?2
    AND from_at = (SELECT max(from_at) FROM non_fire WHERE schedule_id = ?1)
