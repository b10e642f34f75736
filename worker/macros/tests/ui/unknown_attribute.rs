use bellwether_worker_macros::job;

#[job(name = "report", timezone = "UTC")]
async fn report() -> Result<(), String> {
    Ok(())
}

fn main() {}
