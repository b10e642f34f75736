use bellwether_worker_macros::job;

#[job(name = "report", shards = 4)]
async fn report() -> Result<(), String> {
    Ok(())
}

fn main() {}
