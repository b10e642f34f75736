-- In name order, so that two statements that add the same queues cannot deadlock.
INSERT INTO queue (name, created_at)
SELECT name, clock_timestamp() FROM (SELECT DISTINCT unnest($1::text[]) AS name) AS named
ORDER BY name
ON CONFLICT (name) DO NOTHING
