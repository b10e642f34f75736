use bellwether_worker_macros::job;

#[job(name = "a", every = "1m", misfire = "catchup")]
async fn a() -> Result<(), String> {
    Ok(())
}

#[job(name = "b", every = "1m", misfire = "catch_up", catch_up_max = 10)]
async fn b() -> Result<(), String> {
    Ok(())
}

#[job(name = "c", every = "1m", misfire = "skip", catch_up_window = "1h")]
async fn c() -> Result<(), String> {
    Ok(())
}

#[job(name = "d", every = "1m", misfire = "catch_up", catch_up_max = 1001, catch_up_window = "1h")]
async fn d() -> Result<(), String> {
    Ok(())
}

#[job(name = "e", overlap = "queue_one")]
async fn e() -> Result<(), String> {
    Ok(())
}

#[job(name = "f", every = "1m", overlap = "queue")]
async fn f() -> Result<(), String> {
    Ok(())
}

#[job(name = "g", retry_first = "2h")]
async fn g() -> Result<(), String> {
    Ok(())
}

#[job(name = "h", retry_first = "0ms")]
async fn h() -> Result<(), String> {
    Ok(())
}

#[job(name = "i", retry_first = "10s", retry_cap = "2s")]
async fn i() -> Result<(), String> {
    Ok(())
}

#[job(name = "j", every = "1m", grace = 60)]
async fn j() -> Result<(), String> {
    Ok(())
}

fn main() {}
