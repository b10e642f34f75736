-- What was granted before goes, on the ledger's own tables and nothing beside them; then every role finds the
-- tables and checks their version.
REVOKE ALL ON attempt, clock_anomaly, dead_letter, definition, execution, fenced_result, fire,
    idempotency, lease, ledger, non_fire, outbox, queue, schedule, schedule_timing, schema_version,
    session, session_definition, stream, submission_key, term, ticker, verdict FROM $1;
GRANT USAGE ON SCHEMA $2 TO $1;
GRANT SELECT ON ledger, schema_version TO $1;
