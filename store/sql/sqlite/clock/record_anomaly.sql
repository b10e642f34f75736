-- ?1 now, ?2 seen_by, ?3 detail
INSERT INTO clock_anomaly (at, seen_by, detail) VALUES (?1, ?2, ?3)
