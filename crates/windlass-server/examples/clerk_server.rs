//! A server of agents whose model follows a script, for the tests in a browser and for trying the inspector without a
//! provider: `cargo run -p windlass-server --example clerk_server -- 127.0.0.1:4816 /tmp/clerk.db`.

#[path = "../tests/support/mod.rs"]
mod support;

use std::sync::Arc;

use windlass::fleet::RunQueue;
use windlass::store::SqliteStore;
use windlass_server::{AccessPolicy, AccessRole, AgentServer, CallPreview, ServerLimits, TokenDigest};

#[tokio::main]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let mut words = std::env::args().skip(1);
    let address = words.next().unwrap_or_else(|| windlass_server::DEFAULT_ADDRESS.to_owned());
    let path = words.next().unwrap_or_else(|| "clerk.db".to_owned());
    // The journals of live sessions, if there are any, are beside the store.
    let live_journals = std::path::Path::new(&path).with_file_name("live");
    let store: Arc<dyn RunQueue> = Arc::new(SqliteStore::open(path)?);
    let mut limits = ServerLimits { requests_per_second: 5_000, ..ServerLimits::default() };
    if std::env::var_os("WINDLASS_CLERK_WATCHES").is_some() {
        // Such a server drives no run itself.
        limits.concurrent_runs = 0;
    }
    if std::env::var_os("WINDLASS_CLERK_BURIES").is_some() {
        support::bury_run(&*store, "buried").await;
    }
    let agents = [
        support::clerk(),
        support::clerk_named("bank"),
        support::front(),
        support::banker(),
        support::saver(),
    ];
    let mut server = AgentServer::new(agents)
        .store(store)
        .address(address)
        .limits(limits)
        .live_journals(live_journals)
        .preview(Arc::new(|_, call| {
            (call.tool.name() == "write_file").then(|| CallPreview {
                title: "changes notes.md, 1 line added, 1 removed".to_owned(),
                is_refused: false,
                lines: ["@@ -1,2 +1,2 @@", " # Notes", "-\told", "+\tnew"].map(str::to_owned).to_vec(),
            })
        }));
    // Further words are `name:token:role`, for a server with people.
    let people: Vec<String> = words.collect();
    if people.is_empty() {
        server = server.access(AccessPolicy::for_local_user("clerk"));
    } else {
        let mut policy = AccessPolicy::default();
        for person in &people {
            let parts: Vec<&str> = person.split(':').collect();
            let [name, token, role] = parts.as_slice() else { return Err("name:token:role".into()) };
            let role = match *role {
                "view" => AccessRole::View,
                "run" => AccessRole::Run,
                "approve" => AccessRole::Approve,
                _ => AccessRole::Administer,
            };
            policy = policy.with_person(*name, TokenDigest::of_token(token), [("*", role)]);
        }
        server = server.access(policy);
    }
    let listener = server.listen().await?;
    println!("listening on http://{}", listener.local_addr()?);
    server.serve_on(listener).await?;
    Ok(())
}
