//! `windlass fork`, `diff`, `export` and `verify`: operations on journals, all based on replay.

use std::path::Path;
use std::time::Duration;

use serde_json::{Value, json};
use windlass::artefact::append_run_media;
use windlass::core::inspect::{self, ForkChange, VerifiedJournal, verify_text};
use windlass::core::{
    authenticity::{MacError, MacKeyring},
    canonical::Digest,
    decision::{Decision, DecisionScope},
    id::{CallPath, RunId},
    item::OutputContent,
    journal::{
        CallStatus, JournalEntry, JournalRecord, append_text_mac, encode_journal, stored_media_urls,
        verify_text_mac,
    },
};
use windlass::store::{
    self, LeaseClaim, OpenRunError, RunQuery, SnapshotVerification, StoreVerification, list_all_runs,
    load_paused, verify_stored_run,
};

use super::resume::{current_time, resume_run};
use crate::agent_path::{AGENT_PATH_ARTEFACT, encode_agent_path, recorded_agent_path};
use crate::args::{
    ApproveArgs, CliArgs, DiffArgs, DriveArgs, ExportArgs, ForkArgs, ForkChangeArgs, PendingCallArgs,
    VerifyArgs,
};
use crate::cli_error::{CliError, CommandExit};
use crate::project::{CliProject, find_run, new_run_id};
use crate::run_driver::current_user;
use crate::terminal::{OutputFormat, Terminal, TextStyle, paint, styled};

/// Duration of the lease under which a new fork gets its artefacts.
const FORK_LEASE: Duration = Duration::from_secs(30);
/// Size of the pictures and files in an exported run, of which a server reads 32 MiB by default.
const MAX_EXPORTED_MEDIA_BYTES: usize = 16 << 20;

pub(crate) async fn fork_run(
    args: &CliArgs,
    asked: &ForkArgs,
    term: &Terminal,
) -> Result<CommandExit, CliError> {
    if asked.change.approve.is_some() && !term.can_prompt() {
        return Err(CliError::usage("nobody can confirm the call here, because there is no terminal").with_hint(
            "fork the run without --approve; then `windlass show` prints the call of the fork and its digest, for `windlass approve --digest`",
        ));
    }
    let project = CliProject::from_args(args)?;
    let store = project.open_existing().await?;
    let stored = find_run(&*store, Some(&asked.run), |_| true).await?;
    let agent = recorded_agent_path(&project, &*store, &stored.run).await?;
    let at = asked.at.unwrap_or(stored.record_count.saturating_sub(1));
    let id = asked.id.as_deref().map_or_else(new_run_id, RunId::from);
    let forked = store::fork_run(&*store, &stored.run, at, id.clone(), fork_change(&asked.change)?)
        .await
        .map_err(|error| {
            let hint =
                format!("`windlass show {} --journal` lists the records with their numbers", stored.run);
            CliError::new(error.to_string()).with_hint(hint)
        })?;
    if let Some(agent) = agent {
        let agent = encode_agent_path(&id, &agent, store.mac_keys().map(|keys| &**keys));
        let owner = format!("windlass-fork-{id}");
        let claim = LeaseClaim { owner: &owner, now: current_time(), duration: FORK_LEASE };
        let lease = store.acquire_lease(&id, claim, None).await?;
        store.save_artefact(&lease, AGENT_PATH_ARTEFACT, &agent).await?;
        store.release_lease(&lease).await?;
    }
    match term.output_format() {
        OutputFormat::Json => {
            let value = json!({ "type": "fork", "run": id, "origin": { "run": stored.run, "seq": at }, "records": forked.record().journal().len() });
            term.print_json(&value);
        }
        OutputFormat::Text => term.print_line(format!("run {id} is a fork of {} at record {at}", stored.run)),
    }
    if let Some(call) = &asked.change.approve {
        // The call waits in the fork as it did in the run, and is displayed before it is approved.
        let pending_call = PendingCallArgs {
            run: Some(id.to_string()),
            call: Some(call.clone()),
            digest: None,
            by: None,
            resume: asked.resume,
        };
        let approve = ApproveArgs { pending_call, always: false, arguments: None };
        return super::decisions::approve(args, &approve, term).await;
    }
    if asked.resume {
        let drive = DriveArgs { model: None, yes: false, no_input: false };
        return resume_run(args, term, store, &id, None, &drive).await;
    }
    if term.output_format() == OutputFormat::Text {
        term.eprint_hint(format!("`windlass resume {id}` resumes the fork"));
    }
    Ok(CommandExit::Success)
}

fn fork_change(asked: &ForkChangeArgs) -> Result<ForkChange, CliError> {
    let decide = |call: &str, decision| ForkChange::CallDecision {
        call: CallPath::from(call),
        decision,
        scope: DecisionScope::ThisCall,
        decided_by: Some(current_user()),
    };
    Ok(match asked {
        ForkChangeArgs { reject: Some(call), .. } => decide(call, Decision::Reject { message: None }),
        ForkChangeArgs { output: Some(output), .. } => {
            let Some((call, text)) = output.split_once('=') else {
                return Err(CliError::usage("--output needs a call id and a text")
                    .with_hint("write --output CALL=TEXT"));
            };
            let output = OutputContent::from(text);
            ForkChange::CallOutput { call: CallPath::from(call), status: CallStatus::Succeeded, output }
        }
        ForkChangeArgs { approve: _, reject: None, output: None } => ForkChange::Unchanged,
    })
}

pub(crate) async fn diff_runs(
    args: &CliArgs,
    asked: &DiffArgs,
    term: &Terminal,
) -> Result<CommandExit, CliError> {
    let store = CliProject::from_args(args)?.open_existing().await?;
    let mut journals = Vec::new();
    for named in [&asked.first, &asked.second] {
        let stored = find_run(&*store, Some(named), |_| true).await?;
        journals.push(load_paused(&*store, &stored.run).await?.record().journal().to_vec());
    }
    let [first, second] = journals.as_slice() else { return Err(CliError::new("two runs are needed")) };
    let found = inspect::diff_runs(first, second);
    match term.output_format() {
        OutputFormat::Json => {
            let fields = found.first_difference.iter().flat_map(|first_difference| &first_difference.fields);
            let fields: Vec<Value> = fields
                .map(|field| json!({ "field": field.field, "first": field.first, "second": field.second }))
                .collect();
            let lines = |steps: &[inspect::StepLine]| -> Vec<Value> {
                steps.iter().map(|step| json!({ "seq": step.seq, "text": step.text })).collect()
            };
            term.print_json(&json!({
                "common_records": found.common_records,
                "fields": fields,
                "first": lines(&found.first_steps),
                "second": lines(&found.second_steps),
            }));
        }
        OutputFormat::Text => {
            found.to_string().lines().for_each(|line| term.print_wrapped(6, line));
        }
    }
    Ok(CommandExit::Success)
}

pub(crate) async fn export_run(
    args: &CliArgs,
    asked: &ExportArgs,
    term: &Terminal,
) -> Result<CommandExit, CliError> {
    let store = CliProject::from_args(args)?.open_existing().await?;
    let stored = find_run(&*store, asked.run.as_deref(), |_| true).await?;
    #[cfg(feature = "otlp")]
    if let Some(address) = &asked.otlp {
        return super::export_trace::send_trace(&*store, &stored.run, address.as_deref(), term).await;
    }
    let known = load_paused(&*store, &stored.run).await?;
    let records = known.record().journal();
    let text = match term.output_format() {
        OutputFormat::Text => {
            let mut text = encode_journal(records);
            if let Some(keys) = store.mac_keys() {
                append_text_mac(&mut text, &stored.run, records.len() as u64, keys);
            }
            let urls = stored_media_urls(&text);
            append_run_media(&*store, &mut text, &urls, MAX_EXPORTED_MEDIA_BYTES).await?;
            text
        }
        OutputFormat::Json => {
            with_inline_history(records).iter().map(|record| json!(record).to_string() + "\n").collect()
        }
    };
    match &asked.output {
        None => term.print_data(&text),
        Some(path) => {
            std::fs::write(path, text)
                .map_err(|error| CliError::new(format!("`{}` cannot be written: {error}", path.display())))?;
            if term.output_format() == OutputFormat::Text {
                term.eprint_line(format!("run {} was exported to {}", stored.run, path.display()));
            }
        }
    }
    Ok(CommandExit::Success)
}

/// Returns the records with the history of the run's session inline, so that they can be read without the session.
fn with_inline_history(records: &[JournalRecord]) -> Vec<JournalRecord> {
    let mut records = records.to_vec();
    if let Some(JournalEntry::RunStarted(started)) = records.first_mut().map(|first| &mut first.entry)
        && let Ok(inline) = started.history.to_inline()
    {
        started.history = inline;
    }
    records
}

pub(crate) async fn verify_runs(
    args: &CliArgs,
    asked: &VerifyArgs,
    term: &Terminal,
) -> Result<CommandExit, CliError> {
    if let Some(named) = &asked.run
        && Path::new(named).is_file()
    {
        let text = std::fs::read_to_string(named)
            .map_err(|error| CliError::new(format!("`{named}` cannot be read: {error}")))?;
        let verified =
            verify_text(&text).map_err(|error| corrupt_journal_error(named, &error.to_string()))?;
        let source = CliProject::from_args(args)?;
        let approvers = source.approvers()?;
        if let (Some(approvers), Some(JournalEntry::RunStarted(started))) =
            (&approvers, verified.records.first().map(|first| &first.entry))
        {
            let checked = approvers.verify_records(&started.run, &verified.records);
            checked.map_err(|error| corrupt_journal_error(named, &error.to_string()))?;
        }
        let keys = source.key_source().path().filter(|path| path.exists());
        let keys = keys.map(|_| source.key_source().read()).transpose()?.flatten();
        let authenticity = match keys {
            None => JournalAuthenticity::NoKeys,
            Some(keys) => text_authenticity(named, &text, &verified, &keys)?,
        };
        let authenticity = VerifiedAuthenticity { macs: authenticity, has_approvers: approvers.is_some() };
        return report_verified(term, named, &verified, &authenticity, asked.head.as_deref());
    }
    let store = CliProject::from_args(args)?.open_existing().await?;
    let runs = match &asked.run {
        Some(named) => vec![find_run(&*store, Some(named), |_| true).await?],
        None => list_all_runs(&*store, RunQuery::default()).await?,
    };
    let mut exit = CommandExit::Success;
    for stored in &runs {
        match verify_stored_run(&*store, &stored.run).await {
            Ok(verified) => {
                let name = stored.run.as_str();
                if verified.has_forgery() {
                    exit = CommandExit::CorruptJournal;
                    report_forgeries(term, name, &verified);
                }
                let authenticity = match (store.mac_keys(), verified.has_forgery()) {
                    (None, _) => JournalAuthenticity::NoKeys,
                    (Some(_), false) => JournalAuthenticity::AllAuthentic,
                    (Some(_), true) => JournalAuthenticity::DecisionsAuthentic,
                };
                let has_approvers = store.approvers().is_some();
                let authenticity = VerifiedAuthenticity { macs: authenticity, has_approvers };
                report_verified(term, name, &verified.journal, &authenticity, asked.head.as_deref())?;
            }
            Err(OpenRunError::Store(error)) => return Err(error.into()),
            Err(OpenRunError::JournalFormat { source: error, .. }) => {
                exit = CommandExit::CorruptJournal;
                term.report_error(&corrupt_journal_error(stored.run.as_str(), &error.to_string()));
            }
            Err(error) => {
                exit = CommandExit::CorruptJournal;
                term.report_error(&corrupt_journal_error(stored.run.as_str(), &error.to_string()));
            }
        }
    }
    Ok(exit)
}

/// The authenticity of a verified journal by MACs and by signatures.
struct VerifiedAuthenticity {
    macs: JournalAuthenticity,
    /// True if every approval was found to have the signature of an approver.
    has_approvers: bool,
}

impl VerifiedAuthenticity {
    fn describe_signatures(&self) -> &'static str {
        match self.has_approvers {
            true => "every decision other than a rejection is signed by an approver of the project",
            false => "the project has no approvers: decisions need no signature",
        }
    }
}

/// The authenticity of what was verified.
#[derive(Clone, Debug, PartialEq, Eq)]
enum JournalAuthenticity {
    /// Everything has a valid MAC.
    AllAuthentic,
    /// The decisions in the journal have valid MACs; something beside the journal is forged.
    DecisionsAuthentic,
    /// The text cannot be verified, for this reason.
    Unverifiable(String),
    /// There are no keys.
    NoKeys,
}

impl JournalAuthenticity {
    fn describe(&self) -> String {
        match self {
            Self::AllAuthentic => "every decision and snapshot is authentic".to_owned(),
            Self::DecisionsAuthentic => "the decisions in the journal are authentic".to_owned(),
            Self::Unverifiable(reason) => format!("its decisions cannot be authenticated: {reason}"),
            Self::NoKeys => "its decisions cannot be authenticated: there is no key".to_owned(),
        }
    }
}

/// Verifies the MAC of an exported journal.
fn text_authenticity(
    name: &str,
    text: &str,
    verified: &VerifiedJournal,
    keys: &MacKeyring,
) -> Result<JournalAuthenticity, CliError> {
    let Some(JournalEntry::RunStarted(started)) = verified.records.first().map(|first| &first.entry) else {
        return Err(corrupt_journal_error(name, "it has no start"));
    };
    match verify_text_mac(text, &started.run, verified.records.len() as u64, keys) {
        Ok(_) => Ok(JournalAuthenticity::AllAuthentic),
        Err(error @ MacError::Mismatch(_)) => {
            Err(corrupt_journal_error(name, &format!("the file is forged: {error}")))
        }
        Err(error) => Ok(JournalAuthenticity::Unverifiable(error.to_string())),
    }
}

/// Reports a forged snapshot and forged posted decisions.
fn report_forgeries(term: &Terminal, name: &str, verified: &StoreVerification) {
    let snapshot = match &verified.snapshot {
        Some(SnapshotVerification::Forged(reason)) => Some(format!("the snapshot is forged: {reason}")),
        Some(SnapshotVerification::Different) => {
            Some("the snapshot is forged: it is not the state that the journal has".to_owned())
        }
        _ => None,
    };
    let posted = verified.posted.refused.iter().map(ToString::to_string);
    for forgery in snapshot.into_iter().chain(posted) {
        let error = CliError::new(format!("{name}: {forgery}")).with_hint(
            "somebody without the key has written to the store; no driver with the key acts on it",
        );
        term.report_error(&error);
    }
}

fn corrupt_journal_error(name: &str, why: &str) -> CliError {
    CliError::new(format!("{name}: {why}"))
        .with_exit(CommandExit::CorruptJournal)
        .with_hint("the journal was modified or damaged; restore it from a backup or an earlier export")
}

fn report_verified(
    term: &Terminal,
    name: &str,
    verified: &VerifiedJournal,
    authenticity: &VerifiedAuthenticity,
    head: Option<&str>,
) -> Result<CommandExit, CliError> {
    let VerifiedJournal { records, head_hash: found, decisions } = verified;
    if let Some(head) = head
        && !is_hash_prefix(head, found)
    {
        return Err(corrupt_journal_error(
            name,
            &format!("the hash of its last line is {found}, not {head}"),
        ));
    }
    match term.output_format() {
        OutputFormat::Json => {
            let decisions: Vec<Value> = decisions
                .iter()
                .map(|ruling| json!({ "seq": ruling.seq, "at": ruling.at, "agent": ruling.agent, "tool": ruling.tool.to_string(), "call": ruling.call.as_ref().map(ToString::to_string), "decided_by": ruling.decided_by, "verified_by": ruling.verified_by, "text": ruling.to_string() }))
                .collect();
            let count = records.len();
            let is_ok = authenticity.macs != JournalAuthenticity::DecisionsAuthentic;
            term.print_json(&json!({ "run": name, "ok": is_ok, "records": count, "head": found.to_string(), "authenticity": authenticity.macs.describe(), "signatures": authenticity.describe_signatures(), "decisions": decisions }));
        }
        OutputFormat::Text => {
            term.print_line(styled![
                paint(TextStyle::Success, "✓"),
                format!(" {name}: {} records verified", records.len()),
            ]);
            term.print_line(format!("  hash of the last line: {found}"));
            term.print_line(format!("  {}", authenticity.macs.describe()));
            if authenticity.has_approvers {
                term.print_line(format!("  {}", authenticity.describe_signatures()));
            }
            decisions.iter().for_each(|ruling| term.print_wrapped(4, format!("  {ruling}")));
        }
    }
    Ok(CommandExit::Success)
}

fn is_hash_prefix(noted: &str, head: &Digest) -> bool {
    noted.len() >= 8 && head.to_string().starts_with(noted)
}
