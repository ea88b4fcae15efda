//! The tools of the demo's agent. They work on real files in the folder of the demo.

use std::path::{Component, Path, PathBuf};
use std::time::Duration;

use schemars::JsonSchema;
use serde::Deserialize;
use windlass::tool::ReconcileOutcome;
use windlass::{
    core::tool::ToolEffect,
    tool::{Tool, ToolContext, ToolError},
};

use super::bank::{BankPayment, DemoBank};

/// Largest payment that requires no approval, in euros.
pub(super) const APPROVAL_THRESHOLD: u32 = 100;
/// Response time of the bank.
const RESPONSE_TIME: Duration = Duration::from_millis(900);
/// Response time of the bank in silent mode, long enough for the process to be killed.
const SILENT_RESPONSE_TIME: Duration = Duration::from_secs(600);
/// Environment variable that makes the bank accept large payments without responding, so that the demo can
/// kill the process.
pub(super) const SILENT_BANK_VARIABLE: &str = "WINDLASS_DEMO_SILENT_BANK";

#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
struct ArchiveInvoiceArgs {
    /// The name of the file in the inbox, such as `harbour.txt`.
    file: String,
}

#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
struct PayInvoiceArgs {
    /// Who gets the money.
    to: String,
    /// How much, in whole euros.
    euros: u32,
    /// The number of the invoice.
    invoice: String,
}

/// Returns the tools of the demo for its folder.
pub(crate) fn demo_tools(folder: &Path) -> Vec<Tool> {
    vec![pay_tool(folder), archive_tool(folder.to_owned())]
}

/// Returns the payment tool. Its effect is `once`, the default: it is never repeated blindly. After a crash
/// it reconciles by looking up the idempotency key in the bank's ledger.
fn pay_tool(folder: &Path) -> Tool {
    let (bank, asked) = (DemoBank::in_folder(folder), DemoBank::in_folder(folder));
    Tool::function("pay", "Pays an invoice.", move |ctx: ToolContext, pay: PayInvoiceArgs| {
        let bank = bank.clone();
        async move {
            let PayInvoiceArgs { to, euros, invoice } = pay;
            let payment = BankPayment { idempotency_key: ctx.idempotency_key(), to, euros, invoice };
            bank.append_payment(&payment)?;
            wait_for_bank(&ctx, euros).await;
            Ok::<_, ToolError>(receipt_text(&payment))
        }
    })
    .needs_approval_if(|pay: &PayInvoiceArgs| pay.euros > APPROVAL_THRESHOLD)
    .reconcile(move |ctx| {
        let asked = asked.clone();
        async move {
            let Ok(payments) = asked.payments() else { return ReconcileOutcome::Unknown };
            match payments.iter().find(|payment| payment.idempotency_key == ctx.idempotency_key()) {
                Some(payment) => ReconcileOutcome::Executed(receipt_text(payment).into()),
                None => ReconcileOutcome::NotExecuted,
            }
        }
    })
}

fn archive_tool(folder: PathBuf) -> Tool {
    let description = "Moves a paid invoice from the inbox to the archive.";
    Tool::blocking("archive", description, move |_ctx, invoice: ArchiveInvoiceArgs| {
        let name = plain_file_name(&invoice.file)?;
        let (from, to) = (folder.join("inbox").join(&name), folder.join("paid").join(&name));
        if !from.exists() && to.exists() {
            return Ok(format!("{} is in paid/", invoice.file));
        }
        std::fs::rename(from, to).map_err(|_| unknown_invoice(&invoice.file))?;
        Ok::<_, ToolError>(format!("{} is in paid/", invoice.file))
    })
    .effect(ToolEffect::Idempotent)
}

async fn wait_for_bank(ctx: &ToolContext, euros: u32) {
    match std::env::var(SILENT_BANK_VARIABLE) {
        Ok(how) if euros > APPROVAL_THRESHOLD => {
            let process = std::process::id();
            let words = match how.as_str() {
                "by hand" => format!("waits for the bank; now: kill -9 {process}"),
                _ => format!("process {process} waits for the bank"),
            };
            ctx.report_progress(words);
            tokio::time::sleep(SILENT_RESPONSE_TIME).await;
        }
        _ => tokio::time::sleep(RESPONSE_TIME).await,
    }
}

fn receipt_text(payment: &BankPayment) -> String {
    format!("paid: {} euros to {} for invoice {}", payment.euros, payment.to, payment.invoice)
}

/// Returns the file name, and rejects a path to another folder.
fn plain_file_name(name: &str) -> Result<PathBuf, ToolError> {
    let path = Path::new(name);
    let mut parts = path.components();
    match (parts.next(), parts.next()) {
        (Some(Component::Normal(_)), None) => Ok(path.to_owned()),
        _ => Err(ToolError::visible(format!("`{name}` is not the name of a file"))),
    }
}

fn unknown_invoice(file: &str) -> ToolError {
    ToolError::visible(format!("there is no invoice `{file}` in the inbox"))
}
