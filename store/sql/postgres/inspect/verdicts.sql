SELECT generation, recorded_at, said_by, probe_no, verdict, note, became
FROM verdict
WHERE execution_id = $1
ORDER BY recorded_at, token
