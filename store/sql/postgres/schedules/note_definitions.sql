-- $1 names, $2 hashes, $3 bodies. In the order of the key, so that two workers that note the same
-- cannot deadlock.
INSERT INTO definition (name, hash, body, first_seen_at, noted_at)
SELECT noted.name, noted.hash, noted.body, clock.now, clock.now
FROM (
    SELECT DISTINCT ON (name, hash) name, hash, body
    FROM unnest($1::text[], $2::text[], $3::text[]) AS given (name, hash, body)
    ORDER BY name, hash
) AS noted
CROSS JOIN (SELECT clock_timestamp() AS now) AS clock
ORDER BY noted.name, noted.hash
ON CONFLICT (name, hash) DO UPDATE SET noted_at = greatest(definition.noted_at, excluded.noted_at)
