use bellwether_worker_macros::job;

#[job(cron = "0 2 * * *")]
async fn report() -> Result<(), String> {
    Ok(())
}

fn main() {}
