use bellwether_worker_macros::job;

#[job(name = "report")]
fn report() -> Result<(), String> {
    Ok(())
}

fn main() {}
