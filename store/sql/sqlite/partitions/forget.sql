-- ?1 not seen since, ?2 id of the caller, who is there
DELETE FROM ticker WHERE seen_at < ?1 AND id <> ?2
