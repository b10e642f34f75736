UPDATE outbox SET leased_until = NULL WHERE leased_until IS NOT NULL
