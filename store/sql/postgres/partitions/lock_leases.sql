-- Waits for planners, which hold a row FOR KEY SHARE, and keeps new ones waiting.
SELECT partition FROM lease ORDER BY partition FOR UPDATE
