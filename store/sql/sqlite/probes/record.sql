-- ?1 token, ?2 execution, ?3 generation, ?4 now, ?5 said_by, ?6 probe_no, ?7 verdict, ?8 note,
-- ?9 the state it has made
INSERT INTO verdict (token, execution_id, generation, recorded_at, said_by, probe_no, verdict,
    note, became)
VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9)
