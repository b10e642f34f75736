-- ?1 as in history.sql. The last timing that began before it is the one of the instants behind it.
DELETE FROM schedule_timing
WHERE rowid IN (
    SELECT t.rowid
    FROM json_each(?1) moved
    CROSS JOIN schedule_timing t ON t.schedule_id = unhex(moved.value ->> 0)
    WHERE EXISTS (
        SELECT 1 FROM schedule_timing later
        WHERE later.schedule_id = t.schedule_id AND later.valid_from <= moved.value ->> 1
            AND (later.valid_from, later.version) > (t.valid_from, t.version)))
