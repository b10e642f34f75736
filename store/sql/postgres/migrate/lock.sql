-- Two processes that migrate the same schema at once: the second waits, then finds nothing to do.
SELECT pg_advisory_xact_lock(hashtextextended('bellwether migrate ' || $1, 0))
