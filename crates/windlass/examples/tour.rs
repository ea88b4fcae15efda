//! A tour in one minute: two calls at once, a payment that waits for a person, a run that outlives its
//! process, and a ledger that shows that nothing happened twice.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use windlass::prelude::*;

type Error = Box<dyn std::error::Error>;

/// The world that the tools touch: a file that every effect is written to.
struct World(PathBuf);

impl World {
    fn write(&self, line: &str) -> std::io::Result<()> {
        use std::io::Write;
        let mut file = fs::File::options().create(true).append(true).open(&self.0)?;
        // In one piece, because two tools may write at once.
        file.write_all(format!("{line}\n").as_bytes())
    }
}

/// Reserves a cabin.
#[tool]
async fn reserve(ctx: &ToolContext<World>, cabin: u8) -> Result<String, std::io::Error> {
    ctx.write(&format!("reserve cabin {cabin}"))?;
    Ok(format!("cabin {cabin} is reserved"))
}

/// Sends a letter.
#[tool]
async fn write_to(ctx: &ToolContext<World>, guest: String) -> Result<String, std::io::Error> {
    ctx.write(&format!("write to {guest}"))?;
    Ok(format!("{guest} has a letter"))
}

/// Takes money from a guest's account.
#[tool(approve = |args| args.euros >= 100)]
async fn charge(ctx: &ToolContext<World>, guest: String, euros: u32) -> Result<String, std::io::Error> {
    ctx.write(&format!("charge {guest} {euros} euros"))?;
    Ok(format!("{guest} paid {euros} euros"))
}

/// Each process builds the agent for itself. A scripted model stands in for a real one.
fn purser(replies: impl IntoIterator<Item = Reply>) -> Agent<World> {
    Agent::new("purser").model(ScriptedModel::new(replies)).tools((reserve, write_to, charge))
}

async fn begin(folder: &Path) -> Result<(), Error> {
    println!("process {}: “Book cabin 7 for Ada.”", std::process::id());
    let agent = purser([Reply::call("c1", "reserve", json!({ "cabin": 7 }))
        .and_call("c2", "charge", json!({ "guest": "Ada", "euros": 480 }))
        .and_call("c3", "write_to", json!({ "guest": "Ada" }))]);
    let outcome = agent.run_with("Book cabin 7 for Ada.", World(folder.join("ledger"))).await?;
    let paused = outcome.paused().ok_or("the charge should wait")?;
    println!("  the model asked for three calls at once; two needed nobody and ran:");
    print!("{}", indented(&fs::read_to_string(folder.join("ledger"))?));
    for call in paused.pending() {
        println!("  {} {} waits for a person", call.tool, call.arguments);
    }
    let text = paused.to_text();
    fs::write(folder.join("run.windlass"), &text)?;
    println!("  the run is {} bytes of text in a file, and this process ends\n", text.len());
    Ok(())
}

async fn resume(folder: &Path) -> Result<(), Error> {
    println!("process {}: a person says yes", std::process::id());
    let mut paused = Paused::from_text(&fs::read_to_string(folder.join("run.windlass"))?)?;
    paused.decide_as("the captain");
    paused.approve("c2")?;
    let agent = purser([Reply::text("Cabin 7 is yours, Ada.")]);
    let outcome = agent.resume_with(paused, World(folder.join("ledger"))).await?;
    println!("  {}: {}\n", outcome.record().last_agent(), outcome.text());
    assert_eq!(outcome.text(), "Cabin 7 is yours, Ada.");
    Ok(())
}

fn indented(text: &str) -> String {
    text.lines().map(|line| format!("    {line}\n")).collect()
}

#[tokio::main]
async fn main() -> Result<(), Error> {
    let words: Vec<String> = std::env::args().skip(1).collect();
    match words.iter().map(String::as_str).collect::<Vec<_>>()[..] {
        ["begin", folder] => return begin(Path::new(folder)).await,
        ["resume", folder] => return resume(Path::new(folder)).await,
        _ => {}
    }
    let folder = std::env::temp_dir().join(format!("windlass-tour-{}", std::process::id()));
    fs::create_dir(&folder)?;
    // Real processes: what the second one knows, it knows from the file.
    for part in ["begin", "resume"] {
        let status = Command::new(std::env::current_exe()?).arg(part).arg(&folder).status()?;
        assert!(status.success(), "`{part}` failed");
    }
    let ledger = fs::read_to_string(folder.join("ledger"))?;
    print!("the ledger of the world, where each effect stands once:\n{}", indented(&ledger));
    fs::remove_dir_all(folder)?;
    let mut effects: Vec<&str> = ledger.lines().collect();
    assert_eq!(effects.pop(), Some("charge Ada 480 euros"), "the charge came last, after the yes");
    effects.sort_unstable();
    assert_eq!(effects, ["reserve cabin 7", "write to Ada"]);
    Ok(())
}
