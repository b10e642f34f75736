SELECT schedule_id, scheduled_at FROM fire WHERE trigger IN ('cron', 'every', 'at')
ORDER BY schedule_id, scheduled_at
