//! Journal entries: the events of a run, in order. The state of the run is the fold of its entries.

use std::sync::Arc;

use serde::{Deserialize, Serialize};

use crate::authenticity::{DecisionSignature, MessageMac};
use crate::budget::{BudgetSpending, OnBudgetReached, ReachedBudget, SessionBudget, SpendingBudget};
use crate::canonical::Digest;
use crate::decision::{Decision, DecisionScope, HoldReason, PersonQuestion};
use crate::failure::RunFailure;
use crate::id::{AgentName, CallId, RunId, SessionId, Timestamp};
use crate::idempotency::{CallKey, IdempotencyKey, KeyNonce};
use crate::item::{Item, OutputContent};
use crate::journal::agent_build::AgentBuild;
use crate::journal::start_history::StartHistory;
use crate::plan::PlannedCall;
use crate::provenance::ContentSources;
use crate::tool::ToolKey;
use crate::usage::Usage;

/// An entry with its position in the journal.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct JournalRecord {
    /// Sequence number, from 0 without gaps.
    pub seq: u64,
    /// Time at which the record was written.
    pub at: Timestamp,
    /// The calls that lead to the nested agent whose event this is, outermost first; empty for the run itself.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub path: Vec<CallId>,
    /// The event.
    pub entry: JournalEntry,
}

/// The event.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "type", rename_all = "snake_case")]
pub enum JournalEntry {
    /// The run started.
    RunStarted(Box<RunStarted>),
    /// The model responded, and its calls were planned.
    ModelResponded(Box<ModelResponded>),
    /// The model's response violated the protocol and was rejected; none of its calls ran.
    ResponseRejected(ResponseRejected),
    /// A request to the model failed.
    ModelRequestFailed(ModelRequestFailed),
    /// An input filter changed what the next model request contains. The history is unchanged.
    ModelInputFiltered(ModelInputFiltered),
    /// The history was compacted: later model requests have these items in place of the history so far.
    HistoryCompacted(HistoryCompacted),
    /// A model request was reserved in the budgets that cover it. This entry is durable before the request is sent.
    BudgetReserved(BudgetReserved),
    /// A budget does not allow the next model request.
    BudgetReached(Box<BudgetReached>),
    /// A call is held until a person decides or answers.
    CallHeld(CallHeld),
    /// A decision about a call was recorded.
    DecisionRecorded(DecisionRecorded),
    /// A standing decision was revoked.
    DecisionRevoked(DecisionRevoked),
    /// The body of a call is about to start. This entry is durable before the body starts.
    CallStarted(CallStarted),
    /// The body of a call ended, and its output is withheld until the output guardrails have passed it.
    CallBodyEnded(CallBodyEnded),
    /// A call settled: it has its output. Every call settles exactly once.
    CallSettled(CallSettled),
    /// A body that had been abandoned ended after its call had settled.
    CallEndedLate(CallEndedLate),
    /// Control passed to another agent.
    HandoffRecorded(HandoffRecorded),
    /// The agent's final-output function returned no output for the turn's tool results; the model is asked again.
    TurnContinued,
    /// The model's final output does not match the agent's output type; the model is told why and asked again.
    OutputRejected(OutputRejected),
    /// Input was added to a run that has not ended; the next model request contains it.
    InputAdded(InputAdded),
    /// The store that has the run was restored from a backup: the run may have gone on after the record before this one.
    RunRestored(RunRestored),
    /// The run finished with an output.
    RunFinished(RunFinished),
    /// The run failed.
    RunFailed(RunFailed),
    /// The run was cancelled.
    RunCancelled(RunCancelled),
}

impl JournalEntry {
    /// Returns the model usage that this entry reports; zero for entries that report none.
    pub fn model_usage(&self) -> Usage {
        match self {
            Self::ModelResponded(answered) => answered.usage,
            Self::ResponseRejected(refused) => refused.usage,
            Self::ModelRequestFailed(failed) => failed.usage_or_unknown(),
            Self::HistoryCompacted(compacted) => compacted.summary_usage.unwrap_or_default(),
            _ => Usage::default(),
        }
    }

    /// Returns the time of drivers that this entry reports, in milliseconds; 0 for entries that report none.
    pub fn active_ms(&self) -> u64 {
        match self {
            Self::ModelResponded(answered) => answered.active_ms,
            Self::ModelRequestFailed(failed) => failed.active_ms,
            Self::BudgetReserved(reserved) => reserved.active_ms,
            Self::BudgetReached(reached) => reached.active_ms,
            Self::CallHeld(held) => held.active_ms,
            Self::CallSettled(settled) => settled.active_ms,
            _ => 0,
        }
    }

    /// Sets the time that drivers have worked on the run, in milliseconds. Entries that report none are unchanged.
    pub fn set_active_ms(&mut self, time: u64) {
        match self {
            Self::ModelResponded(answered) => answered.active_ms = time,
            Self::ModelRequestFailed(failed) => failed.active_ms = time,
            Self::BudgetReserved(reserved) => reserved.active_ms = time,
            Self::BudgetReached(reached) => reached.active_ms = time,
            Self::CallHeld(held) => held.active_ms = time,
            Self::CallSettled(settled) => settled.active_ms = time,
            _ => {}
        }
    }

    /// Returns the MAC of a decision, if this entry is one: `Some(None)` for a decision without a MAC.
    pub fn decision_mac(&self) -> Option<Option<&MessageMac>> {
        match self {
            Self::DecisionRecorded(decided) => Some(decided.mac.as_deref()),
            Self::DecisionRevoked(revoked) => Some(revoked.mac.as_deref()),
            _ => None,
        }
    }

    /// Sets or removes the MAC of a decision. Other entries have none.
    pub fn set_decision_mac(&mut self, mac: Option<MessageMac>) {
        match self {
            Self::DecisionRecorded(decided) => decided.mac = mac.map(Box::new),
            Self::DecisionRevoked(revoked) => revoked.mac = mac.map(Box::new),
            _ => {}
        }
    }
}

/// The run started.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct RunStarted {
    /// The run's id.
    pub run: RunId,
    /// The agent that starts the run.
    pub agent: AgentName,
    /// The history at the start of the run: by reference to the session, or inline.
    #[serde(default, skip_serializing_if = "StartHistory::is_omitted")]
    pub history: StartHistory,
    /// The input of the run.
    pub input: Vec<Arc<Item>>,
    /// Maximum number of turns; unlimited if absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub max_turns: Option<u32>,
    /// The session that the run belongs to.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub session: Option<SessionId>,
    /// The provider's id of the response that the run continues; absent if it begins a conversation. The provider stores
    /// the conversation of such a run.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub previous_response_id: Option<String>,
    /// Nonce in the idempotency keys of the run and of its nested agents; absent if no other run can have the id. It is
    /// recorded, so a run that is moved or resumed keeps its keys.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub key_nonce: Option<KeyNonce>,
    /// The run and record that this run was forked from; absent if it is not a fork.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub origin: Option<ForkOrigin>,
    /// The build that begins the run; absent for an agent inside a call, and in journals of drivers that know none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub build: Option<AgentBuild>,
    /// The budget of the run, nested agents included.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub budget: Option<Box<SpendingBudget>>,
    /// The budget of the run's session, with what its earlier runs have spent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub session_budget: Option<Box<SessionBudget>>,
}

impl RunStarted {
    /// Creates the start of a run without input.
    pub fn new(run: RunId, agent: AgentName) -> Self {
        Self {
            run,
            agent,
            history: StartHistory::default(),
            input: Vec::new(),
            max_turns: None,
            session: None,
            previous_response_id: None,
            key_nonce: None,
            origin: None,
            build: None,
            budget: None,
            session_budget: None,
        }
    }
}

/// The run and record that a fork was made from.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ForkOrigin {
    /// The original run.
    pub run: RunId,
    /// The original run's record at which the fork was made.
    pub seq: u64,
}

/// The model responded.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ModelResponded {
    /// The agent that made the request.
    pub agent: AgentName,
    /// The items of the response.
    pub items: Vec<Arc<Item>>,
    /// The planned calls, one for each call item in the same order.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub calls: Vec<PlannedCall>,
    /// Number of calls that were dropped because they repeat a call that already has its output.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub duplicate_calls: u32,
    /// Sources outside the conversation of the text that the model could read when it proposed the calls. The machine
    /// derives them too, and never believes that there were fewer.
    #[serde(default, skip_serializing_if = "ContentSources::is_empty")]
    pub context_sources: ContentSources,
    /// The effect of the turn's results on the run.
    #[serde(default, skip_serializing_if = "ToolUsePolicyKind::is_run_model_again")]
    pub tool_use_policy: ToolUsePolicyKind,
    /// Tokens and requests that the response cost.
    pub usage: Usage,
    /// The provider's id of the response.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub response_id: Option<String>,
    /// The provider's id of the request, for support enquiries.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub request_id: Option<String>,
    /// The model that responded, as the provider names it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub model: Option<String>,
    /// The model that was asked, and its provider.
    #[serde(default, skip_serializing_if = "RequestedModel::is_unknown")]
    pub requested: RequestedModel,
    /// Number of requests until the model responded.
    #[serde(default = "one", skip_serializing_if = "is_one")]
    pub attempts: u32,
    /// Time at which the first of these requests was sent, if a request was sent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub requested_at: Option<Timestamp>,
    /// The reason for which the response ended, if it is another one than its end or its calls.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub finish_reason: Option<FinishReason>,
    /// Time in milliseconds that drivers have worked on the run so far; 0 in a run without a budget.
    #[serde(default, skip_serializing_if = "is_no_time")]
    pub active_ms: u64,
}

/// The model that a request was sent to.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct RequestedModel {
    /// Name of the provider in the semantic conventions of OpenTelemetry, such as `openai`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub provider: Option<String>,
    /// Name of the model, as the request names it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub model: Option<String>,
}

impl RequestedModel {
    fn is_unknown(&self) -> bool {
        *self == Self::default()
    }
}

/// The reason for which a response of a model ended.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum FinishReason {
    /// The response is complete.
    Complete,
    /// The model waits for the outputs of its calls.
    ToolCalls,
    /// The response reached a stop text.
    StopSequence,
    /// The response reached the maximum of output tokens.
    LengthLimit,
    /// The provider's content filter ended the response.
    ContentFilter,
    /// The model refused.
    Refusal,
    /// The provider paused a long turn, which the next request continues.
    Paused,
    /// Another reason, in the provider's notation.
    Other(String),
}

impl FinishReason {
    /// True if the response ended with its text or its calls.
    pub fn is_ordinary(&self) -> bool {
        matches!(self, Self::Complete | Self::ToolCalls)
    }
}

/// The effect of a turn's tool results on the run.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ToolUsePolicyKind {
    /// The model is requested again with the results.
    #[default]
    RunModelAgain,
    /// The first result becomes the run's output.
    StopOnFirstTool,
    /// The first result of one of these tools becomes the run's output.
    StopAtTools(Vec<String>),
    /// The application's function decides whether the results are final.
    CustomFunction,
}

fn is_no_epoch(epoch: &u64) -> bool {
    *epoch == 0
}

fn is_zero(count: &u32) -> bool {
    *count == 0
}

fn one() -> u32 {
    1
}

fn is_one(count: &u32) -> bool {
    *count == 1
}

fn is_false(flag: &bool) -> bool {
    !flag
}

impl ToolUsePolicyKind {
    fn is_run_model_again(&self) -> bool {
        matches!(self, Self::RunModelAgain)
    }
}

/// The model's response violated the protocol and was rejected.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ResponseRejected {
    /// The agent that made the request.
    pub agent: AgentName,
    /// The items of the response.
    pub items: Vec<Arc<Item>>,
    /// Tokens and requests that the response cost.
    pub usage: Usage,
}

/// A request to the model failed.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ModelRequestFailed {
    /// The agent that made the request.
    pub agent: AgentName,
    /// The error message.
    pub error: String,
    /// Delay before the request is retried, in milliseconds; not retried if absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub retry_after_ms: Option<u64>,
    /// The model that was asked, and its provider.
    #[serde(default, skip_serializing_if = "RequestedModel::is_unknown")]
    pub requested: RequestedModel,
    /// Usage of the failed request, if the provider reported it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub usage: Option<Usage>,
    /// Time in milliseconds that drivers have worked on the run so far; 0 in a run without a budget.
    #[serde(default, skip_serializing_if = "is_no_time")]
    pub active_ms: u64,
}

impl ModelRequestFailed {
    /// Returns the usage of the failed request, or one request of unknown cost if the provider reported none.
    pub fn usage_or_unknown(&self) -> Usage {
        self.usage.unwrap_or_else(Usage::of_unknown_request)
    }
}

/// An input filter changed what the next model request contains.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ModelInputFiltered {
    /// The agent whose request it is.
    pub agent: AgentName,
    /// The instructions, if the filter changed them.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub instructions: Option<String>,
    /// The items of the request, in order.
    pub input: Vec<FilteredInput>,
}

/// The history was compacted, so that the conversation fits into the context window of the model.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct HistoryCompacted {
    /// The agent whose request needs the space.
    pub agent: AgentName,
    /// The reason of the compaction.
    pub reason: CompactionReason,
    /// The new history, in order: items of the history so far, and items that the compaction made.
    pub history: Vec<FilteredInput>,
    /// Estimated tokens of the request before the compaction.
    pub tokens_before: u64,
    /// Estimated tokens of the request after the compaction.
    pub tokens_after: u64,
    /// Usage of the model that summarised the history; absent if no model was asked.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub summary_usage: Option<Usage>,
    /// Size of the agent's context window in tokens, as a refused request has shown it; absent if none was refused.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub learned_window: Option<u64>,
}

/// The reason of a compaction.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum CompactionReason {
    /// The next request would come close to the context window.
    NearContextWindow,
    /// The provider refused a request that exceeds the context window.
    ContextLengthExceeded,
}

/// A part of a filtered model input, or of a compacted history.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum FilteredInput {
    /// Consecutive items of the history.
    History {
        /// Index of the first item.
        from: usize,
        /// Index after the last item.
        to: usize,
    },
    /// An item that the filter or the compaction made.
    Item(Arc<Item>),
}

/// A model request was reserved in the budgets that cover it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct BudgetReserved {
    /// The agent that makes the request.
    pub agent: AgentName,
    /// Estimate of the request. It counts as spent until the answer is recorded, and for good if none is.
    pub estimate: BudgetSpending,
    /// Time in milliseconds that drivers have worked on the run so far.
    #[serde(default, skip_serializing_if = "is_no_time")]
    pub active_ms: u64,
    /// True if the request is for a summary of the history. The request that needs the space has a reservation of its own.
    #[serde(default, skip_serializing_if = "is_false")]
    pub is_summary: bool,
}

fn is_no_time(time: &u64) -> bool {
    *time == 0
}

/// A budget does not allow the next model request.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct BudgetReached {
    /// The agent whose request it is.
    pub agent: AgentName,
    /// The budget.
    pub budget: ReachedBudget,
    /// The declared reaction.
    pub reaction: OnBudgetReached,
    /// The question to a person, if the reaction is to ask one. The run waits for the answer.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub question: Option<PersonQuestion>,
    /// Time in milliseconds that drivers have worked on the run so far; 0 in a run without a budget.
    #[serde(default, skip_serializing_if = "is_no_time")]
    pub active_ms: u64,
}

/// A call is held until a person decides or answers.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct CallHeld {
    /// The call's id.
    pub call: CallId,
    /// The reason for the hold.
    pub reason: HoldReason,
    /// Time at which the hold expires and the call is rejected; never if absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub expires_at: Option<Timestamp>,
    /// For a call in doubt, the last time at which the driver before the one that found it was seen, on that driver's clock. It
    /// started the call, or took the run over from the driver that did and found nothing out.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub last_driver_seen: Option<Timestamp>,
    /// Names of the secret arguments of the call's tool: fields, or fields joined by dots. Edited arguments are recorded
    /// without their values.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub secret_arguments: Vec<String>,
    /// Time in milliseconds that drivers have worked on the run so far; 0 in a run without a budget.
    #[serde(default, skip_serializing_if = "is_no_time")]
    pub active_ms: u64,
}

impl CallHeld {
    /// Creates a hold for a call whose body asks a question.
    pub fn for_question(call: CallId, question: PersonQuestion) -> Self {
        Self::new(call, HoldReason::Question(question))
    }

    /// Creates a hold that does not expire.
    pub fn new(call: CallId, reason: HoldReason) -> Self {
        Self {
            call,
            reason,
            expires_at: None,
            last_driver_seen: None,
            secret_arguments: Vec::new(),
            active_ms: 0,
        }
    }
}

/// A decision about a call was recorded.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct DecisionRecorded {
    /// The call's id.
    pub call: CallId,
    /// Digest of the tool call that was shown to the approver; the decision covers no other call.
    pub digest: Digest,
    /// The decision.
    pub decision: Decision,
    /// The set of calls that the decision covers.
    #[serde(default)]
    pub scope: DecisionScope,
    /// Name of the person or policy that decided, if known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub decided_by: Option<String>,
    /// Digest of the text that was displayed to the approver before the decision, if a display was recorded. The
    /// text depends on the program that displayed it; nothing is derived from the digest.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub displayed: Option<Digest>,
    /// Revision of the decision among those that were posted about this hold of the call, from 1; 0 if it was made on
    /// the run itself.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub posted_revision: u32,
    /// Signature of the approver: see [`crate::authenticity::SignedDecision`].
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub signature: Option<Box<DecisionSignature>>,
    /// MAC of the journal up to and including this record: see [`crate::authenticity::MacMessage::JournalHead`]. It is made when the record is
    /// appended to a store with keys, and is the last field.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub mac: Option<Box<MessageMac>>,
}

impl DecisionRecorded {
    /// Returns true if both entries record the same decision with the same digest and scope, regardless of who
    /// decided and of what was displayed.
    pub fn is_same_decision(&self, other: &Self) -> bool {
        self.digest == other.digest && self.decision == other.decision && self.scope == other.scope
    }
}

/// A standing decision was revoked.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct DecisionRevoked {
    /// The agent whose calls the decision covered.
    pub agent: AgentName,
    /// The tool whose calls the decision covered.
    pub tool: ToolKey,
    /// MAC of the journal up to and including this record: see [`DecisionRecorded::mac`].
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub mac: Option<Box<MessageMac>>,
}

/// The body of a call is about to start.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct CallStarted {
    /// The call's id.
    pub call: CallId,
    /// Attempt number, from 1.
    #[serde(default = "first_attempt", skip_serializing_if = "is_first_attempt")]
    pub attempt: u32,
    /// The idempotency key of the call. All attempts in one run have the same.
    #[serde(rename = "key")]
    pub idempotency_key: IdempotencyKey,
    /// Digest under which a successful output becomes a receipt; absent if the call leaves none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub receipt_digest: Option<Digest>,
    /// Generation of the receipt and of the key, which rises when a receipt expires.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub generation: u32,
    /// True if the driver that started the previous attempt starts this one, because that attempt failed.
    #[serde(default, skip_serializing_if = "is_false")]
    pub is_retry: bool,
    /// Epoch of the lease under which the body starts: its fencing token; 0 for a run without a store.
    #[serde(default, skip_serializing_if = "is_no_epoch")]
    pub epoch: u64,
    /// True if the run that this one was forked from started the body, and the call was open at the fork. The key is that
    /// run's key.
    #[serde(default, skip_serializing_if = "is_false")]
    pub is_inherited: bool,
}

fn first_attempt() -> u32 {
    1
}

fn is_first_attempt(attempt: &u32) -> bool {
    *attempt == 1
}

impl CallStarted {
    /// Creates the start of an attempt.
    pub fn new(call: CallId, attempt: u32, key: CallKey, epoch: u64) -> Self {
        let CallKey { idempotency_key, receipt_digest, generation } = key;
        Self {
            call,
            attempt,
            idempotency_key,
            receipt_digest,
            generation,
            is_retry: false,
            epoch,
            is_inherited: false,
        }
    }

    /// Returns the recorded identity of the call.
    pub fn call_key(&self) -> CallKey {
        CallKey {
            idempotency_key: self.idempotency_key.clone(),
            receipt_digest: self.receipt_digest,
            generation: self.generation,
        }
    }
}

/// The body of a call ended, and its output is withheld.
///
/// The journal holds the digest of the output. The output itself is kept where only drivers read it, and enters the
/// journal with the settlement, if the output guardrails pass it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct CallBodyEnded {
    /// The call's id.
    pub call: CallId,
    /// The status with which the call settles if its output passes.
    pub status: CallStatus,
    /// Digest of the withheld output: see [`OutputContent::digest`].
    pub output_digest: Digest,
}

/// A call settled: it has its output.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct CallSettled {
    /// The call's id.
    pub call: CallId,
    /// The status that the call settled with.
    #[serde(default, skip_serializing_if = "CallStatus::is_succeeded")]
    pub status: CallStatus,
    /// The output that the model receives; a placeholder in the persisted entry if the tool's output is secret.
    pub output: OutputContent,
    /// True if the persisted output lacks secrets that the model received.
    #[serde(default, skip_serializing_if = "is_false")]
    pub is_output_redacted: bool,
    /// The verdicts of the tool's guardrails, in the order in which they ran.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub guardrails: Vec<GuardrailRecord>,
    /// The failure with which this call ends the run; absent if the run continues.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub run_failure: Option<Box<RunFailure>>,
    /// Time in milliseconds that drivers have worked on the run so far; 0 in a run without a budget.
    #[serde(default, skip_serializing_if = "is_no_time")]
    pub active_ms: u64,
}

impl CallSettled {
    /// Creates a settlement that does not end the run.
    pub fn new(call: CallId, how: CallStatus, output: impl Into<OutputContent>) -> Self {
        Self {
            call,
            status: how,
            output: output.into(),
            is_output_redacted: false,
            guardrails: Vec::new(),
            run_failure: None,
            active_ms: 0,
        }
    }
}

/// The verdict of one guardrail of a tool.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct GuardrailRecord {
    /// The guardrail's name.
    pub name: String,
    /// The stage at which it ran.
    pub stage: GuardrailStage,
    /// Its verdict.
    pub verdict: GuardrailOutcome,
}

/// The stage at which a guardrail of a tool ran.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum GuardrailStage {
    /// Before the body.
    Input,
    /// After the body.
    Output,
}

/// The verdict of a guardrail of a tool, without its texts.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum GuardrailOutcome {
    /// The call or its output passed.
    Allowed,
    /// The call or its output was rejected.
    Rejected,
    /// The output was replaced.
    Replaced,
    /// The run was ended.
    FailedRun,
    /// The guardrail itself failed, which counts as a rejection.
    Failed,
}

/// The status that a call settled with.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum CallStatus {
    /// The body returned the output.
    #[default]
    Succeeded,
    /// The body failed.
    Failed,
    /// The body exceeded its timeout and was stopped.
    TimedOut,
    /// The body exceeded its timeout and could not be stopped; it may still take effect.
    TimedOutStillRunning,
    /// The arguments were invalid; the body did not run.
    InvalidArguments,
    /// The agent has no tool of this name.
    UnknownTool,
    /// The call was a second handoff in one response; only the first is carried out.
    SurplusHandoff,
    /// A person or a policy rejected the call.
    Rejected,
    /// A guardrail blocked the call; its body did not run.
    BlockedByGuardrail,
    /// The body ran, and its output was withheld: an output guardrail blocked it, or the run ended before the output
    /// guardrails had passed it.
    OutputWithheld,
    /// The output is the receipt of an identical call of an idempotent tool.
    Deduplicated,
    /// The run was cancelled or ended before the call finished.
    Cancelled,
    /// The call was in doubt, and was confirmed to have been executed.
    Reconciled,
    /// The call was in doubt, and its outcome could not be determined.
    OutcomeUnknown,
}

impl CallStatus {
    fn is_succeeded(&self) -> bool {
        *self == Self::Succeeded
    }

    /// Returns true if the call was executed successfully, now or earlier.
    pub fn is_success(&self) -> bool {
        match self {
            Self::Succeeded | Self::Deduplicated | Self::Reconciled => true,
            Self::Failed
            | Self::TimedOut
            | Self::TimedOutStillRunning
            | Self::InvalidArguments
            | Self::UnknownTool
            | Self::SurplusHandoff
            | Self::Rejected
            | Self::BlockedByGuardrail
            | Self::OutputWithheld
            | Self::Cancelled
            | Self::OutcomeUnknown => false,
        }
    }

    /// Returns true if a body produced the output, in this call or in the one whose result was reused.
    pub fn is_body_result(&self) -> bool {
        match self {
            Self::Succeeded | Self::Failed | Self::TimedOut | Self::Deduplicated | Self::Reconciled => true,
            Self::TimedOutStillRunning
            | Self::InvalidArguments
            | Self::UnknownTool
            | Self::SurplusHandoff
            | Self::Rejected
            | Self::BlockedByGuardrail
            | Self::OutputWithheld
            | Self::Cancelled
            | Self::OutcomeUnknown => false,
        }
    }
}

/// A body that had been abandoned ended after its call had settled.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct CallEndedLate {
    /// The call's id.
    pub call: CallId,
    /// The outcome of the body: [`CallStatus::Succeeded`] or [`CallStatus::Failed`].
    pub status: CallStatus,
    /// The output or the error message; absent if the tool has output guardrails, which did not see it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub output: Option<OutputContent>,
}

/// Control passed to another agent.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct HandoffRecorded {
    /// The call that requested the handoff.
    pub call: CallId,
    /// The agent that takes over.
    pub to: AgentName,
    /// History that replaces the current one for the new agent; absent unless a filter changed it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub filtered_history: Option<Vec<Arc<Item>>>,
}

/// The model's final output does not match the agent's output type.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct OutputRejected {
    /// The message that tells the model why. It enters the history.
    pub correction: Arc<Item>,
}

/// Input was added to a run that has not ended; the next model request contains it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct InputAdded {
    /// The added items.
    pub items: Vec<Arc<Item>>,
    /// Number of the queue's order that added them; absent if they were added otherwise. An order is recorded once.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub order: Option<u64>,
}

/// The store that has the run was restored from a backup.
///
/// Calls that were open and must not be repeated may have started since, so they are in doubt; so is every later call of the
/// run that has an effect, because the run may have made it under another id.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct RunRestored {}

/// The run finished with an output.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct RunFinished {
    /// The output: text, or the JSON text of a typed output.
    pub output: String,
    /// Message appended to the history if a handler produced the output.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub message: Option<Arc<Item>>,
}

/// The run failed.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct RunFailed {
    /// The cause.
    pub failure: RunFailure,
    /// Calls whose bodies were still running when the drain timeout elapsed.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub draining_calls: Vec<CallId>,
}

impl RunFailed {
    /// Creates the failure of a run whose bodies have all ended.
    pub fn new(failure: RunFailure) -> Self {
        Self { failure, draining_calls: Vec::new() }
    }
}

/// The run was cancelled.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct RunCancelled {
    /// Calls whose bodies were still running when the drain timeout elapsed.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub draining_calls: Vec<CallId>,
}
