use windlass::tool;

struct Opaque;

/// Returns what cannot be written.
#[tool]
fn result() -> Opaque {
    Opaque
}

/// Returns what cannot be written, maybe.
#[tool]
async fn maybe() -> Result<Opaque, String> {
    Ok(Opaque)
}

/// Fails with what cannot be shown.
#[tool]
async fn error() -> Result<String, Opaque> {
    Err(Opaque)
}

/// Cannot move between threads.
#[tool]
async fn stays() -> String {
    let here = std::rc::Rc::new(1);
    std::future::ready(()).await;
    here.to_string()
}

fn main() {}
