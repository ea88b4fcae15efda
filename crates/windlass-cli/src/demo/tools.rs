//! The clerk's tools. They work on real files, in the folder of the demo.

use std::path::{Component, Path, PathBuf};
use std::time::Duration;

use schemars::JsonSchema;
use serde::Deserialize;
use windlass::tool::Reconciled;
use windlass::{Effect, Tool, ToolContext, ToolError};

use super::bank::{Bank, Payment};

/// The largest payment that nobody is asked about, in euros.
const UNASKED: u32 = 100;
/// How long the bank takes to answer.
const ANSWER: Duration = Duration::from_millis(900);
/// How long it is waited for an answer that does not come.
const SILENCE: Duration = Duration::from_secs(600);
/// Where this is set, the bank takes large payments and then does not answer: there the demo kills the process.
pub(super) const SILENT: &str = "WINDLASS_DEMO_SILENT_BANK";

#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
struct Invoice {
    /// The name of the file in the inbox, such as `harbour.txt`.
    file: String,
}

#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
struct Pay {
    /// Who gets the money.
    to: String,
    /// How much, in whole euros.
    euros: u32,
    /// The number of the invoice.
    invoice: String,
}

/// The tools of the demo, working in its folder.
pub(crate) fn tools(folder: &Path) -> Vec<Tool> {
    vec![pay(folder), archive(folder.to_owned())]
}

/// Its effect is `once`, as that of every tool that does not say otherwise: it is never run again blindly. After a
/// crash it asks the bank whether it knows the payment's key.
fn pay(folder: &Path) -> Tool {
    let (bank, asked) = (Bank::of(folder), Bank::of(folder));
    Tool::function("pay", "Pays an invoice.", move |ctx: ToolContext, pay: Pay| {
        let bank = bank.clone();
        async move {
            let Pay { to, euros, invoice } = pay;
            let payment = Payment { key: ctx.idempotency_key(), to, euros, invoice };
            bank.pay(&payment)?;
            wait_for_answer(&ctx, euros).await;
            Ok::<_, ToolError>(receipt(&payment))
        }
    })
    .approve_if(|pay: &Pay| pay.euros > UNASKED)
    .reconcile(move |ctx| {
        let asked = asked.clone();
        async move {
            let Ok(payments) = asked.payments() else { return Reconciled::Unknown };
            match payments.iter().find(|payment| payment.key == ctx.idempotency_key()) {
                Some(payment) => Reconciled::Happened(receipt(payment).into()),
                None => Reconciled::DidNotHappen,
            }
        }
    })
}

fn archive(folder: PathBuf) -> Tool {
    let description = "Moves a paid invoice from the inbox to the archive.";
    Tool::blocking("archive", description, move |_ctx, invoice: Invoice| {
        let name = plain_name(&invoice.file)?;
        let (from, to) = (folder.join("inbox").join(&name), folder.join("paid").join(&name));
        if !from.exists() && to.exists() {
            return Ok(format!("{} is in paid/", invoice.file));
        }
        std::fs::rename(from, to).map_err(|_| no_such(&invoice.file))?;
        Ok::<_, ToolError>(format!("{} is in paid/", invoice.file))
    })
    .effect(Effect::Idempotent)
}

async fn wait_for_answer(ctx: &ToolContext, euros: u32) {
    match std::env::var(SILENT) {
        Ok(how) if euros > UNASKED => {
            let process = std::process::id();
            let words = match how.as_str() {
                "by hand" => format!("waits for the bank; now: kill -9 {process}"),
                _ => format!("process {process} waits for the bank"),
            };
            ctx.progress(words);
            tokio::time::sleep(SILENCE).await;
        }
        _ => tokio::time::sleep(ANSWER).await,
    }
}

fn receipt(payment: &Payment) -> String {
    format!("paid: {} euros to {} for invoice {}", payment.euros, payment.to, payment.invoice)
}

/// A name of a file, and not a way to another folder.
fn plain_name(name: &str) -> Result<PathBuf, ToolError> {
    let path = Path::new(name);
    let mut parts = path.components();
    match (parts.next(), parts.next()) {
        (Some(Component::Normal(_)), None) => Ok(path.to_owned()),
        _ => Err(ToolError::tell(format!("`{name}` is not the name of a file"))),
    }
}

fn no_such(file: &str) -> ToolError {
    ToolError::tell(format!("there is no invoice `{file}` in the inbox"))
}
