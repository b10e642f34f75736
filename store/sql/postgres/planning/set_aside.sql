-- $1 schedules, $2 why each cannot be read
UPDATE schedule
SET fault = aside.fault
FROM unnest($1::uuid[], $2::text[]) AS aside (id, fault)
WHERE schedule.id = aside.id AND schedule.fault IS NULL
