use bellwether_worker_macros::job;

#[job(name = "report", cron = "5/10 * * * *")]
async fn report() -> Result<(), String> {
    Ok(())
}

fn main() {}
