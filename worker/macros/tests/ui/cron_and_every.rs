use bellwether_worker_macros::job;

#[job(name = "report", cron = "0 2 * * *", every = "20s")]
async fn report() -> Result<(), String> {
    Ok(())
}

fn main() {}
