SELECT schedule_id, scheduled_at FROM fire WHERE trigger <> 'manual'
ORDER BY schedule_id, scheduled_at
