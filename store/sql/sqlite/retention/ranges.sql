-- ?1 as in history.sql. No fire lies inside a range, so none reaches over the new beginning.
DELETE FROM non_fire
WHERE rowid IN (
    SELECT r.rowid
    FROM json_each(?1) moved
    CROSS JOIN non_fire r
        ON r.schedule_id = unhex(moved.value ->> 0) AND r.from_at <= moved.value ->> 1
    WHERE r.until_at <= moved.value ->> 1)
