-- $1 name, $2 created, $3 last_seq
INSERT INTO stream (name, created, last_seq, seen_at)
VALUES ($1, $2, $3, clock_timestamp())
ON CONFLICT (name) DO NOTHING
