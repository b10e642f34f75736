-- The reader looks: lists, shows, `audit`. It writes nothing.

GRANT SELECT ON attempt, dead_letter, definition, execution, fenced_result, fire, lease, non_fire,
    outbox, queue, schedule, schedule_timing, session, session_definition, stream, submission_key,
    term, ticker, verdict TO $1;
