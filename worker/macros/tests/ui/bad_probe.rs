use bellwether_worker_macros::job;

#[job(name = "report", probe = "was_it_paid")]
async fn report() -> Result<(), String> {
    Ok(())
}

fn main() {}
