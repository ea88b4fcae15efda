//! `windlass sign`: signs a decision that a server has stated, with the user's own key.
//!
//! **Invariant:** the bytes that are signed are made here from the parts that are displayed. A statement whose own bytes are
//! others, or whose digest is not that of the displayed call, is refused.

use std::io::Read;
use std::path::Path;

use serde::Deserialize;
use serde_json::{Map, Value, json};
use windlass::core::{
    authenticity::SignedDecision,
    canonical::Digest,
    decision::{Decision, DecisionScope, HoldReason, PendingCall},
    id::{CallId, CallPath, RunId},
    journal::DecisionRecorded,
    provenance::ContentSources,
    tool::ToolKey,
};
use windlass_text::SafeText;

use super::decisions::{confirm_in_terminal, edited_call, parse_digest_prefix};
use crate::approver_identity::read_own_signer;
use crate::args::SignArgs;
use crate::cli_error::{CliError, CommandExit};
use crate::run_driver::CallReview;
use crate::terminal::{Terminal, TextStyle, paint, styled};

/// Maximum size of a statement, in bytes.
const MAX_STATEMENT_BYTES: u64 = 32 * 1024 * 1024;
/// Placeholder of a secret argument.
const SECRET_PLACEHOLDER: &str = "[secret]";

/// The statement of a server: the answer of `POST /v1/runs/{run}/statement`.
#[derive(Clone, Debug, Deserialize)]
struct SignableStatement {
    message: String,
    domain: String,
    key: String,
    run: String,
    path: Vec<String>,
    attempt: u32,
    agent: String,
    tool: String,
    arguments: String,
    digest: Digest,
    recorded_decision: Decision,
    recorded_scope: DecisionScope,
    decided_by: String,
    displayed: Digest,
    /// The body to post, which receives the signature.
    decision: Map<String, Value>,
}

/// A statement whose parts are consistent.
struct CheckedStatement {
    statement: SignableStatement,
    run: RunId,
    call: PendingCall,
    recorded: DecisionRecorded,
    /// False if the digest does not show the displayed arguments.
    is_digest_of_arguments: bool,
}

pub(crate) async fn run(asked: &SignArgs, term: &Terminal) -> Result<CommandExit, CliError> {
    let text = read_statement(&asked.statement)?;
    let CheckedStatement { mut statement, run, call, recorded, is_digest_of_arguments } =
        check_statement(&text)?;
    let signer = read_own_signer()?.with_domain(statement.domain.as_str());
    if signer.key().as_str() != statement.key {
        return Err(CliError::new(format!(
            "the statement is for the key {}, and yours is {}",
            statement.key,
            signer.key()
        )));
    }
    let signed = SignedDecision { run: &run, path: &call.path, attempt: call.attempt, decision: &recorded };
    if encode_hex(&signed.message(&statement.domain, signer.key())) != statement.message {
        return Err(CliError::new("the bytes of the statement are not those of the decision that it shows")
            .with_hint("do not trust this server"));
    }
    print_decision(term, &statement, is_digest_of_arguments);
    let review = CallReview::new(&run, &edited_call(&call, &recorded.decision), None);
    let is_confirmed = match &asked.digest {
        Some(digest) => {
            let prefix = parse_digest_prefix(digest)?;
            if !statement.displayed.to_string().starts_with(&prefix) {
                return Err(CliError::new(format!(
                    "the statement is about another sheet: its digest is {}",
                    statement.displayed
                )));
            }
            // The server has displayed the call; this says what is signed.
            review.lines(None).into_iter().for_each(|line| term.eprint_line(line));
            true
        }
        None if !term.can_prompt() => {
            return Err(CliError::usage("nobody can confirm the call here, because there is no terminal")
                .with_hint("pass the digest of the sheet that you have read with --digest"));
        }
        None => confirm_in_terminal(term, &review, "Sign", run.as_str()).await?,
    };
    if !is_confirmed {
        term.eprint_line("nothing was signed");
        return Ok(CommandExit::WaitingForPerson);
    }
    let signature = signer.sign(&signed);
    statement.decision.insert("signature".to_owned(), json!(signature));
    term.print_json(&Value::Object(statement.decision));
    Ok(CommandExit::Success)
}

fn read_statement(path: &Path) -> Result<String, CliError> {
    let failed =
        |error: std::io::Error| CliError::new(format!("`{}` cannot be read: {error}", path.display()));
    let mut text = String::new();
    let source: Box<dyn Read> = match path == Path::new("-") {
        true => Box::new(std::io::stdin()),
        false => Box::new(std::fs::File::open(path).map_err(failed)?),
    };
    source.take(MAX_STATEMENT_BYTES + 1).read_to_string(&mut text).map_err(failed)?;
    if text.len() as u64 > MAX_STATEMENT_BYTES {
        return Err(CliError::new(format!("`{}` is too large for a statement", path.display())));
    }
    Ok(text)
}

/// Parses a statement, and checks that its digest is that of the displayed call.
fn check_statement(text: &str) -> Result<CheckedStatement, CliError> {
    let statement: SignableStatement = serde_json::from_str(text).map_err(|error| {
        CliError::new(format!("this is no statement of a server: {error}"))
            .with_hint("`POST /v1/runs/{run}/statement` returns one; docs/guide/server.md has an example")
    })?;
    let Some((call, parents)) = statement.path.split_last() else {
        return Err(CliError::new("the statement names no call"));
    };
    let parents: Vec<CallId> = parents.iter().map(|call| CallId::new(call.as_str())).collect();
    let path = CallPath::new(&parents, CallId::new(call.as_str()));
    let is_digest_of_arguments =
        Digest::of_parts(&[&statement.tool, &statement.arguments]) == statement.digest;
    let may_differ = statement.arguments.contains(SECRET_PLACEHOLDER)
        || matches!(
            statement.recorded_decision,
            Decision::ConfirmExecuted { .. }
                | Decision::ConfirmNotExecuted
                | Decision::OutcomeUnknown
                | Decision::Answer { .. }
        );
    if !is_digest_of_arguments && !may_differ {
        return Err(CliError::new("the digest of the statement is not that of the call that it shows")
            .with_hint("do not trust this server"));
    }
    let run = RunId::from(statement.run.as_str());
    let recorded = DecisionRecorded {
        call: path.call().clone(),
        digest: statement.digest,
        decision: statement.recorded_decision.clone(),
        scope: statement.recorded_scope,
        decided_by: Some(statement.decided_by.clone()),
        displayed: Some(statement.displayed),
        posted_revision: 0,
        signature: None,
        mac: None,
    };
    let call = PendingCall {
        path,
        agent: statement.agent.as_str().into(),
        tool: ToolKey::bare(statement.tool.as_str()),
        arguments: statement.arguments.clone(),
        reason: HoldReason::Approval,
        attempt: statement.attempt,
        digest: statement.digest,
        expires_at: None,
        max_approval_scope: statement.recorded_scope,
        last_driver_seen: None,
        context_sources: ContentSources::NONE,
        posted: None,
    };
    Ok(CheckedStatement { statement, run, call, recorded, is_digest_of_arguments })
}

/// Prints the parts of the decision that the display of the call does not have.
fn print_decision(term: &Terminal, statement: &SignableStatement, is_digest_of_arguments: bool) {
    let decision = serde_json::to_string(&statement.recorded_decision).unwrap_or_default();
    let scope = match statement.recorded_scope {
        DecisionScope::ThisCall => "this call alone",
        DecisionScope::ToolForRun => "every later call of this tool by this agent in this run",
    };
    let line =
        |name: &str, text: SafeText| term.eprint_line(styled!["  ", paint(TextStyle::Name, name), " ", text]);
    line("you sign", SafeText::from_json(&decision));
    line("it covers", SafeText::from_line(scope));
    line("in the name of", SafeText::from_line(&statement.decided_by));
    line("run", SafeText::from_line(&statement.run));
    line("sheet", SafeText::from_line(&statement.displayed.to_string()));
    if !is_digest_of_arguments {
        let text = "The signature covers a digest that does not show these arguments: some are secret, or the call is \
                    in doubt or asks.";
        term.eprint_line(styled!["  ", paint(TextStyle::Waiting, text)]);
    }
}

fn encode_hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

#[cfg(test)]
mod tests {
    use super::check_statement;

    #[cfg(target_os = "linux")]
    #[test]
    fn fuzz_statements_are_refused_or_shown_whole() {
        let statement = serde_json::json!({
            "message": "00", "domain": "", "key": format!("ed25519:{}", "0f".repeat(32)), "approver": "ann", "run": "r",
            "path": ["outer", "c1"], "attempt": 0, "agent": "clerk", "tool": "pay", "arguments": "{\"euros\":7}",
            "digest": windlass::core::canonical::Digest::of_parts(&["pay", "{\"euros\":7}"]),
            "recorded_decision": "approve", "recorded_scope": "this_call", "decided_by": "ann",
            "displayed": "00".repeat(32), "decision": { "call": "outer/c1" },
        });
        let mut other = statement.clone();
        other["recorded_decision"] = serde_json::json!({ "answer": { "value": [1.5, null] } });
        let target = windlass_fuzz::FuzzTarget::new(env!("CARGO_MANIFEST_DIR"), "signed_statement")
            .seeds([statement.to_string(), other.to_string()]);
        target.words(["approve", "tool_for_run", "[secret]", "\"path\":[]", "\\u0000"]).run(
            module_path!(),
            "fuzz_statements_are_refused_or_shown_whole",
            |input| {
                if let Ok(checked) = check_statement(&String::from_utf8_lossy(input)) {
                    assert_eq!(checked.call.arguments, checked.statement.arguments);
                    assert_eq!(checked.recorded.decision, checked.statement.recorded_decision);
                }
            },
        );
    }
}
