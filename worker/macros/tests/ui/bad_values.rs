use bellwether_worker_macros::job;

#[job(name = "a", priority = "urgent")]
async fn a() -> Result<(), String> {
    Ok(())
}

#[job(name = "b", max_attempts = 0)]
async fn b() -> Result<(), String> {
    Ok(())
}

#[job(name = "c", timeout = 10)]
async fn c() -> Result<(), String> {
    Ok(())
}

#[job(name = "d", every = "0s")]
async fn d() -> Result<(), String> {
    Ok(())
}

#[job(name = "e", description = 7)]
async fn e() -> Result<(), String> {
    Ok(())
}

fn main() {}
