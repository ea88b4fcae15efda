//! `windlass approve`, `reject`, `answer` and `settle`: decisions from any terminal. They are posted to the
//! store, and the driver of the run applies them.
//!
//! **Invariant:** a decision is about one call that was displayed: in this terminal, where the user confirms it, or
//! by `windlass show`, whose digest the user passes.

use serde_json::{Value, json};
use windlass::core::{
    canonical::Digest,
    decision::{Decision, DecisionScope, HoldReason, PendingCall},
    id::CallPath,
    item::OutputContent,
    journal::DecisionRecorded,
};
use windlass::error::{DecisionError, StoreErrorKind};
use windlass::store::{
    DecisionReview, PostDecisionError, RunQuery, RunStatus, StoredRun, list_all_runs, load_paused,
    load_posted_decisions, post_reviewed_decision, post_signed_decision,
};

use super::resume::resume_run;
use super::runs::status_name;
use crate::agent_path::{agent_file_of_run, is_voice_run};
use crate::approver_identity::ApproverIdentity;
use crate::args::{AnswerArgs, ApproveArgs, CliArgs, DriveArgs, PendingCallArgs, RejectArgs, SettleArgs};
use crate::cli_error::{CliError, CommandExit};
use crate::project::{CliProject, find_run};
use crate::run_driver::{
    CallReview, PagerChoice, ReviewPager, SignalCounter, choice_prompt, current_user, is_command_tool,
    pending_line, review_stored_call,
};
use crate::store_place::ProjectStore;
use crate::terminal::{LinePrompter, OutputFormat, PromptInput, Terminal, TextStyle, paint, styled};

/// Minimum length of the prefix of a digest.
const MIN_DIGEST_LENGTH: usize = 16;

/// A decision to make, with the calls that it fits.
struct RequestedDecision {
    decision: Decision,
    scope: DecisionScope,
    /// Verb of the prompt.
    verb: &'static str,
    fits: fn(&PendingCall) -> bool,
}

pub(crate) async fn approve(
    args: &CliArgs,
    approve: &ApproveArgs,
    term: &Terminal,
) -> Result<CommandExit, CliError> {
    let decision = match &approve.arguments {
        Some(arguments) => Decision::ApproveEdited { arguments: canonical_object(arguments)? },
        None => Decision::Approve,
    };
    let request = RequestedDecision {
        decision,
        scope: decision_scope(approve.always),
        verb: "Approve",
        fits: needs_approval,
    };
    decide_call(args, &approve.pending_call, request, term).await
}

pub(crate) async fn reject(
    args: &CliArgs,
    reject: &RejectArgs,
    term: &Terminal,
) -> Result<CommandExit, CliError> {
    let request = RequestedDecision {
        decision: Decision::Reject { message: reject.because.clone() },
        scope: decision_scope(reject.always),
        verb: "Reject",
        fits: needs_approval,
    };
    decide_call(args, &reject.pending_call, request, term).await
}

pub(crate) async fn answer(
    args: &CliArgs,
    answer: &AnswerArgs,
    term: &Terminal,
) -> Result<CommandExit, CliError> {
    let AnswerArgs { run, call, value, digest, by, resume } = answer;
    let value = serde_json::from_str(value).unwrap_or_else(|_| Value::from(value.as_str()));
    let about = PendingCallArgs {
        run: Some(run.clone()),
        call: Some(call.clone()),
        digest: digest.clone(),
        by: by.clone(),
        resume: *resume,
    };
    let request = RequestedDecision {
        decision: Decision::Answer { value },
        scope: DecisionScope::ThisCall,
        verb: "Answer",
        fits: |pending| matches!(pending.reason, HoldReason::Question(_)),
    };
    decide_call(args, &about, request, term).await
}

pub(crate) async fn settle(
    args: &CliArgs,
    settle: &SettleArgs,
    term: &Terminal,
) -> Result<CommandExit, CliError> {
    let decision = match (&settle.settlement.happened, settle.settlement.did_not_happen) {
        (Some(output), _) => Decision::ConfirmExecuted { output: OutputContent::from(output.as_str()) },
        (None, true) => Decision::ConfirmNotExecuted,
        (None, false) => Decision::OutcomeUnknown,
    };
    let request = RequestedDecision {
        decision,
        scope: DecisionScope::ThisCall,
        verb: "Settle",
        fits: |pending| pending.reason == HoldReason::InDoubt,
    };
    decide_call(args, &settle.pending_call, request, term).await
}

pub(super) fn needs_approval(pending: &PendingCall) -> bool {
    pending.reason == HoldReason::Approval
}

fn decision_scope(always: bool) -> DecisionScope {
    if always { DecisionScope::ToolForRun } else { DecisionScope::ThisCall }
}

pub(super) fn canonical_object(text: &str) -> Result<String, CliError> {
    match serde_json::from_str::<Value>(text) {
        Ok(value @ Value::Object(_)) => Ok(windlass::core::canonical::canonical_json(&value)),
        _ => Err(CliError::usage("the arguments are not a JSON object")
            .with_hint("write them as '{\"path\": \"notes.md\"}'")),
    }
}

/// Posts a decision about a pending call, and resumes the run if requested.
async fn decide_call(
    args: &CliArgs,
    about: &PendingCallArgs,
    request: RequestedDecision,
    term: &Terminal,
) -> Result<CommandExit, CliError> {
    let project = CliProject::from_args(args)?;
    let store = project.open_existing().await?;
    let identity = ApproverIdentity::of_project(&project)?;
    identity.check_decision(&request.decision, about.by.as_deref())?;
    let by = about.by.clone().unwrap_or_else(|| identity.name_or(current_user));
    let call = select_call(&project, &store, about, &request).await?;
    let (run, path) = (&call.stored.run, &call.pending.path);
    let posted = posted_decision(&store, &call.stored, path, call.pending.attempt).await?;
    // The same decision is one; another one replaces it until it is taken.
    if let Some(first) = posted
        .as_ref()
        .filter(|first| first.decision == request.decision && first.scope == request.scope && call.is_pending)
    {
        return report_second_decision(term, path, &request.decision, first);
    }
    if request.scope == DecisionScope::ToolForRun
        && request.decision == Decision::Approve
        && is_command_tool(&call.pending.tool)
    {
        return Err(CliError::usage(format!(
            "--always would approve every later command of {}",
            call.pending.tool
        ))
        .with_hint(
            "approve this call alone; the prompt of `windlass resume` offers narrower rules for commands",
        ));
    }
    if let (Decision::Approve | Decision::ApproveEdited { .. }, Some(why)) =
        (&request.decision, call.review.refusal())
    {
        return Err(refused_error(path, why));
    }
    if about.digest.is_none() && !confirm_in_terminal(term, &call.review, request.verb, run.as_str()).await? {
        term.eprint_line("nothing was decided");
        return Ok(CommandExit::WaitingForPerson);
    }
    let displayed = Some(call.review.digest());
    if let Err(error) = post(&store, &call, &request, &identity, by.clone(), displayed).await {
        let is_taken = match &error {
            PostDecisionError::AlreadyTaken(taken) => {
                return Err(decided_error(path, taken.decided_by.as_deref(), &taken.decision));
            }
            PostDecisionError::Store(error) => error.kind() == StoreErrorKind::AlreadyDecided,
            _ => false,
        };
        // The driver may have been faster.
        return match posted_decision(&store, &call.stored, path, call.pending.attempt).await? {
            Some(first) if is_taken => report_second_decision(term, path, &request.decision, &first),
            Some(_) | None => Err(post_error(path, error)),
        };
    }
    match term.output_format() {
        OutputFormat::Json => term.print_json(&json!({
            "type": "decision_posted",
            "run": run,
            "call": path.to_string(),
            "decision": request.decision,
            "decided_by": by,
            "displayed": displayed,
            "replaces": posted.as_ref().map(|first| json!({
                "decision": first.decision, "decided_by": first.decided_by,
            })),
        })),
        OutputFormat::Text => {
            term.print_line(styled![
                paint(TextStyle::Success, "✓"),
                format!(" {by} {} call {path} of run {run}", past_tense(&request.decision)),
            ]);
            if let Some(first) = &posted {
                let before = first.decided_by.as_deref().unwrap_or("somebody");
                term.print_line(format!(
                    "  this replaces the decision of {before}: {}",
                    first.decision.describe()
                ));
            }
        }
    }
    let is_of_voice = is_voice_run(run);
    if about.resume && !is_of_voice {
        return resume_here(args, term, store, &call.stored).await;
    }
    if term.output_format() == OutputFormat::Text && status_name(&call.stored) != "running" {
        let is_queued = store.load_queued_run(run).await?.is_some();
        term.eprint_hint(match (is_queued, is_of_voice) {
            (true, _) => "a worker goes on with the run".to_owned(),
            (false, true) => "the conversation of `windlass talk` goes on with the call".to_owned(),
            (false, false) => format!("`{} resume {run}` resumes the run", term.command_prefix()),
        });
    }
    Ok(CommandExit::Success)
}

/// A pending call that was selected for a decision.
struct SelectedCall {
    stored: StoredRun,
    pending: PendingCall,
    /// The call as it would run after the decision.
    review: CallReview,
    /// False if a decision is recorded about it that can still be corrected.
    is_pending: bool,
}

/// Selects the call that the arguments name: by its digest, by its run and id, or as the only one that waits.
async fn select_call(
    project: &CliProject,
    store: &ProjectStore,
    about: &PendingCallArgs,
    request: &RequestedDecision,
) -> Result<SelectedCall, CliError> {
    let digest = about.digest.as_deref().map(parse_digest_prefix).transpose()?;
    let runs = match &about.run {
        Some(named) => vec![find_run(&**store, Some(named), |_| true).await?],
        None => {
            let paused = RunQuery { statuses: vec![RunStatus::Paused], ..RunQuery::default() };
            list_all_runs(&**store, paused).await?
        }
    };
    let mut found = Vec::new();
    for stored in runs {
        let known = load_paused(&**store, &stored.run).await?;
        let file = agent_file_of_run(project, &**store, &stored.run).await?;
        for pending in known.pending_calls() {
            let is_named = match &about.call {
                Some(named) => {
                    pending.path == CallPath::from(named.as_str()) || pending.call().as_str() == named
                }
                None => (request.fits)(&pending),
            };
            if is_named {
                let edited = edited_call(&pending, &request.decision);
                let review =
                    review_stored_call(project.local_path(), &**store, &stored.run, &edited, file.as_ref())
                        .await?;
                found.push(SelectedCall { stored: stored.clone(), pending, review, is_pending: true });
            }
        }
        let (Some(named), true) = (&about.call, found.is_empty()) else { continue };
        let path = CallPath::from(named.as_str());
        // A recorded decision can be corrected until it is taken; then the user learns who decided.
        if let Some(correctable) = known.correctable_call(&path) {
            let pending = correctable.pending;
            let edited = edited_call(&pending, &request.decision);
            let review =
                review_stored_call(project.local_path(), &**store, &stored.run, &edited, file.as_ref())
                    .await?;
            found.push(SelectedCall { stored, pending, review, is_pending: false });
        } else if let Some(taken) = known.taken_decision(&path) {
            return Err(decided_error(&path, taken.decided_by.as_deref(), &taken.decision));
        }
    }
    if let Some(digest) = digest {
        let has_digest = |call: &SelectedCall| call.review.digest().to_string().starts_with(&digest);
        let mut matching = found.into_iter().filter(has_digest);
        return match (matching.next(), matching.next()) {
            (Some(only), None) => Ok(only),
            (None, _) => Err(CliError::not_found("no pending call has this digest")
                .with_hint("the call was decided, or what it would do has changed since; `windlass show` shows it as it is now, and \
                 with --arguments as it would be with other arguments")),
            (Some(_), Some(_)) => {
                Err(CliError::usage("several calls have this digest").with_hint("give more of the digest"))
            }
        };
    }
    let mut found = found.into_iter();
    match (found.next(), found.next()) {
        (Some(only), None) => Ok(only),
        (None, _) => Err(CliError::not_found("no such call waits for a person").with_hint(
            "`windlass runs --status paused` lists the runs that wait, `windlass show` their calls",
        )),
        (Some(one), Some(other)) => {
            let lines: Vec<String> = [one, other]
                .into_iter()
                .chain(found)
                .map(|call| format!("\nrun {}  {}", call.stored.run, pending_line(&call.pending, 100)))
                .collect();
            Err(CliError::usage(format!("several calls wait for a person:{}", lines.concat()))
                .with_hint("give the run and the id of the call, or the digest that `windlass show` prints"))
        }
    }
}

/// Returns a call as it would run after a decision: with the edited arguments, if there are any.
pub(super) fn edited_call(pending: &PendingCall, decision: &Decision) -> PendingCall {
    match decision {
        Decision::ApproveEdited { arguments } => {
            PendingCall { arguments: arguments.clone(), ..pending.clone() }
        }
        _ => pending.clone(),
    }
}

pub(super) fn parse_digest_prefix(text: &str) -> Result<String, CliError> {
    let text = text.trim().to_lowercase();
    let is_hex = text.chars().all(|letter| letter.is_ascii_hexdigit());
    if is_hex && (MIN_DIGEST_LENGTH..=Digest::of_text("").to_string().len()).contains(&text.len()) {
        return Ok(text);
    }
    Err(CliError::usage(format!("a digest has at least {MIN_DIGEST_LENGTH} hexadecimal digits"))
        .with_hint("copy it from `windlass show`"))
}

/// Displays the call and asks the user to confirm the decision.
///
/// # Errors
///
/// Fails if there is no terminal to ask in.
pub(super) async fn confirm_in_terminal(
    term: &Terminal,
    review: &CallReview,
    verb: &str,
    run: &str,
) -> Result<bool, CliError> {
    if !term.can_prompt() {
        return Err(CliError::usage("nobody can confirm the call here, because there is no terminal")
            .with_hint(format!(
                "`windlass show {run}` prints the call and its digest; pass that with --digest"
            )));
    }
    let mut signals = SignalCounter::install()?;
    let mut prompter = LinePrompter::spawn_reader(None);
    let mut pager = ReviewPager::new(term, review);
    loop {
        pager.print_page(term);
        if pager.is_at_end() {
            break;
        }
        loop {
            match prompter.read_decision(term, pager.prompt(false), &mut signals).await {
                PromptInput::Line(line) => match PagerChoice::parse(&line) {
                    Some(PagerChoice::NextPage) => break,
                    Some(PagerChoice::Later) => return Ok(false),
                    Some(PagerChoice::Reject) | None => pager.print_refusal(term),
                },
                PromptInput::EndOfInput | PromptInput::Interrupted => return Ok(false),
            }
        }
    }
    let prompt = styled![format!("  {verb} it? "), choice_prompt(&[("y", "es"), ("n", "o")]), " "];
    match prompter.read_decision(term, prompt, &mut signals).await {
        PromptInput::Line(line) => Ok(["y", "yes"].contains(&line.trim().to_lowercase().as_str())),
        PromptInput::EndOfInput | PromptInput::Interrupted => Ok(false),
    }
}

/// Posts the decision with the digest of what was displayed. The run may have moved on while the user read: only the
/// displayed hold is decided.
async fn post(
    store: &ProjectStore,
    call: &SelectedCall,
    request: &RequestedDecision,
    identity: &ApproverIdentity,
    by: String,
    displayed: Option<Digest>,
) -> Result<(), PostDecisionError> {
    let review = DecisionReview { decided_by: by, displayed, attempt: Some(call.pending.attempt) };
    let (run, path) = (&call.stored.run, call.pending.path.clone());
    let (decision, scope) = (request.decision.clone(), request.scope);
    match identity.signer() {
        Some(signer) => post_signed_decision(&**store, run, path, decision, scope, review, &signer).await,
        None => post_reviewed_decision(&**store, run, path, decision, scope, review).await,
    }
}

/// Returns the error for the approval of a call that would be refused if it ran now.
fn refused_error(path: &CallPath, why: &str) -> CliError {
    CliError::usage(format!("call {path} cannot be approved: it {why}")).with_hint(
        "reject the call, or approve it when the reason is gone; `windlass show` shows it as it is now",
    )
}

fn post_error(path: &CallPath, error: PostDecisionError) -> CliError {
    match error {
        PostDecisionError::Open(error) => error.into(),
        PostDecisionError::Decide(DecisionError::NotPending(_)) => {
            CliError::not_found(format!("call {path} no longer waits"))
                .with_hint("`windlass show` shows what became of it")
        }
        PostDecisionError::Decide(error) => error.into(),
        PostDecisionError::Store(error) => error.into(),
        other => CliError::new(other.to_string()),
    }
}

/// Returns the decision that is posted about a hold of a call.
async fn posted_decision(
    store: &ProjectStore,
    stored: &StoredRun,
    path: &CallPath,
    attempt: u32,
) -> Result<Option<DecisionRecorded>, CliError> {
    let posted = load_posted_decisions(&**store, &stored.run).await?.authentic;
    let posted = posted.into_iter().find(|posted| posted.path == *path && posted.attempt == attempt);
    Ok(posted.map(|posted| posted.decision))
}

/// Reports that a call was decided before. The same decision is no error.
fn report_second_decision(
    term: &Terminal,
    path: &CallPath,
    decision: &Decision,
    first: &DecisionRecorded,
) -> Result<CommandExit, CliError> {
    if first.decision != *decision {
        return Err(decided_error(path, first.decided_by.as_deref(), &first.decision));
    }
    let by = first.decided_by.as_deref().unwrap_or("somebody");
    match term.output_format() {
        OutputFormat::Json => term.print_json(&json!({
            "type": "already_decided", "call": path.to_string(), "decision": first.decision, "decided_by": by,
        })),
        OutputFormat::Text => {
            term.print_line(format!("{by} has already {} call {path}", past_tense(&first.decision)));
        }
    }
    Ok(CommandExit::Success)
}

fn decided_error(path: &CallPath, by: Option<&str>, decision: &Decision) -> CliError {
    let by = by.unwrap_or("somebody");
    CliError::new(format!("{by} has already {} call {path}, and the decision is taken", past_tense(decision)))
        .with_hint("`windlass show` lists the decisions and who made them")
}

fn past_tense(decision: &Decision) -> &'static str {
    match decision {
        Decision::Approve => "approved",
        Decision::ApproveEdited { .. } => "approved, with other arguments,",
        Decision::Reject { .. } => "rejected",
        Decision::ConfirmExecuted { .. } | Decision::ConfirmNotExecuted | Decision::OutcomeUnknown => {
            "settled"
        }
        Decision::Answer { .. } => "answered",
    }
}

/// Resumes the run in this process.
async fn resume_here(
    args: &CliArgs,
    term: &Terminal,
    store: ProjectStore,
    run: &StoredRun,
) -> Result<CommandExit, CliError> {
    let drive = DriveArgs { model: None, yes: false, no_input: false };
    resume_run(args, term, store, &run.run, None, &drive).await
}
