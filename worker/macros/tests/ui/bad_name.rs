use bellwether_worker_macros::job;

#[job(name = "nightly.report")]
async fn report() -> Result<(), String> {
    Ok(())
}

fn main() {}
