-- ?1 execution
-- `told` = its worker looks for such requests.
SELECT e.state, e.state = 'running' AND EXISTS (
        SELECT 1 FROM session s JOIN json_each(s.capabilities) known
        WHERE s.id = e.session_id AND s.state = 'live' AND known.value = 'cancel') AS told
FROM execution e WHERE e.id = ?1
