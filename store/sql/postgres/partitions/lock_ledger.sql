-- FOR UPDATE waits for registrations, which hold the row FOR KEY SHARE, and keeps new ones waiting.
SELECT partition_count, map_version FROM ledger FOR UPDATE
