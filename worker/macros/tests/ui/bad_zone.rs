use bellwether_worker_macros::job;

#[job(name = "report", cron = "0 2 * * *", tz = "CET5")]
async fn report() -> Result<(), String> {
    Ok(())
}

fn main() {}
