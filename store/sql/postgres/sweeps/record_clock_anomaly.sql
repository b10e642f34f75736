INSERT INTO clock_anomaly (at, seen_by, detail) VALUES (clock_timestamp(), $1, $2)
