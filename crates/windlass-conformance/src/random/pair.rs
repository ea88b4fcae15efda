//! A scenario with its two outcomes, and the questions that the rules and the invariants ask about them.

use std::collections::BTreeMap;

use serde_json::Value;

use crate::compare::trim_failure_text;

/// A scenario with its outcome on the reference and on Windlass.
#[derive(Clone, Debug)]
pub struct OutcomePair {
    /// The scenario.
    pub scenario: Value,
    /// Outcome on the reference.
    pub reference: Value,
    /// Outcome on Windlass.
    pub windlass: Value,
    /// True if only what came before a fork is compared.
    pub is_forked: bool,
}

/// A call in the script of an agent.
pub(super) struct ScriptedCall<'a> {
    pub(super) id: &'a str,
    pub(super) name: &'a str,
    pub(super) args: &'a Value,
    /// Definition of the tool; `Null` for handoffs and unknown tools.
    pub(super) tool: &'a Value,
}

impl OutcomePair {
    /// Creates a pair of whole outcomes.
    pub fn new(scenario: Value, reference: Value, windlass: Value) -> Self {
        Self { scenario, reference, windlass, is_forked: false }
    }

    /// Removes what the two players show differently, and what depends on real time.
    pub(super) fn align(&mut self) {
        let has_blocking_body = object_values(&self.scenario["tools"]).any(|tool| tool["sync"] == true);
        // A call id may belong to different tools, of which one is in a nested agent.
        let mut shared = Vec::new();
        for call in self.calls() {
            if self.calls().any(|other| other.id == call.id && other.name != call.name) {
                shared.push((call.name.to_owned(), call.id.to_owned()));
            }
        }
        // Calls of the same tool with the same id, in different agents, may run at the same time.
        let twins: Vec<String> = self
            .calls()
            .filter(|call| {
                self.calls().filter(|other| other.id == call.id && other.name == call.name).count() > 1
            })
            .map(|call| format!(" {}", call.id))
            .collect();
        for outcome in [&mut self.reference, &mut self.windlass] {
            let said = trim_failure_text(outcome["session"].take());
            outcome["session"] = said;
            for call in outcome["model_calls"].as_array_mut().into_iter().flatten() {
                let said = trim_failure_text(call["input"].take());
                call["input"] = said;
            }
            for line in outcome["log"].as_array_mut().into_iter().flatten() {
                let mut words = text(line).rsplit(' ');
                let (id, name) = (words.next().unwrap_or_default(), words.next().unwrap_or_default());
                // The name of a guardrail ends with that of its tool.
                let is_of = |tool: &str| name == tool || name.ends_with(&format!("_{tool}"));
                if let Some((tool, _)) = shared.iter().find(|(tool, shared)| is_of(tool) && shared == id) {
                    *line = format!("{}@{tool}", text(line)).into();
                }
            }
            let is_twin = |line: &Value| twins.iter().any(|twin| text(line).ends_with(twin.as_str()));
            if let Some(log) = outcome["log"].as_array_mut() {
                let mut lines: Vec<Value> = log.iter().filter(|line| is_twin(line)).cloned().collect();
                lines.sort_by(|a, b| text(a).cmp(text(b)));
                let mut lines = lines.into_iter();
                for line in log.iter_mut().filter(|line| is_twin(line)) {
                    *line = lines.next().unwrap_or_default();
                }
            }
            // The players list the agents in different orders.
            if let Some(calls) = outcome["model_calls"].as_array_mut() {
                calls.sort_by(|a, b| a["agent"].as_str().cmp(&b["agent"].as_str()));
            }
            // Threads overlap by chance.
            if has_blocking_body {
                outcome["peak_concurrency"] = Value::Null;
            }
        }
    }

    /// Returns the calls of all scripts.
    pub(super) fn calls(&self) -> impl Iterator<Item = ScriptedCall<'_>> {
        let steps = object_values(&self.scenario["agents"]).flat_map(|agent| list_items(&agent["script"]));
        steps.flat_map(|step| list_items(&step["calls"])).map(|call| self.scripted_call(call))
    }

    /// Returns the ids of the calls with a property.
    pub(super) fn calls_like(&self, has_property: impl Fn(&ScriptedCall<'_>) -> bool) -> Vec<String> {
        self.calls().filter(has_property).map(|call| call.id.to_owned()).collect()
    }

    /// Returns true if a tool asks the agent.
    pub(super) fn is_nested_agent(&self, agent: &str) -> bool {
        object_values(&self.scenario["tools"]).any(|tool| tool["agent"] == agent)
    }

    /// Returns true if the script of a nested agent has the call.
    pub(super) fn is_nested_call(&self, id: &str) -> bool {
        object_values(&self.scenario["tools"])
            .filter_map(|tool| self.scenario["agents"].get(text(&tool["agent"])))
            .flat_map(|agent| list_items(&agent["script"]))
            .flat_map(|step| list_items(&step["calls"]))
            .any(|call| call["id"] == id)
    }

    pub(super) fn scripted_call<'a>(&'a self, call: &'a Value) -> ScriptedCall<'a> {
        ScriptedCall {
            id: text(&call["id"]),
            name: text(&call["name"]),
            args: &call["args"],
            tool: &self.scenario["tools"][text(&call["name"])],
        }
    }

    /// Returns the ids that the scripts use more than once.
    pub(super) fn repeated_ids(&self) -> Vec<String> {
        let is_repeated = |id: &str| self.calls().filter(|call| call.id == id).count() > 1;
        self.calls().filter(|call| is_repeated(call.id)).map(|call| call.id.to_owned()).collect()
    }

    /// Sets keys of both outcomes to null, so that they are not compared.
    pub(super) fn forget(&mut self, keys: &[&str]) {
        for key in keys {
            self.reference[*key] = Value::Null;
            self.windlass[*key] = Value::Null;
        }
    }

    /// Forgets what came after a fork: the first model response with one of these calls. The log up to the request for that
    /// response, all requests until then and, in a single run, the items and the session before it are still compared.
    pub(super) fn forget_from(&mut self, calls: &[String]) {
        let fork = ForkPlace::new(&self.scenario, calls);
        let is_single_run = !self.scenario["input"].is_array();
        let cut = |outcome: &Value| fork.cut(outcome, calls, is_single_run);
        let (reference, windlass) = (cut(&self.reference), cut(&self.windlass));
        self.reference = reference;
        self.windlass = windlass;
        // One of them has no such line if the run ended before the call.
        for key in ["log", "model_calls", "items", "session"] {
            if self.reference[key].is_null() || self.windlass[key].is_null() {
                self.forget(&[key]);
            }
        }
        self.is_forked = true;
    }

    /// Removes both outcomes, because one run ended where the other one went on. Until then they did the same: the one that
    /// ended has no request, log line or pause that the other one has not.
    pub(super) fn forget_longer(&mut self) {
        if self.is_windlass_ahead() || self.is_reference_ahead() {
            self.reference = Value::Object(serde_json::Map::new());
            self.windlass = self.reference.clone();
            self.is_forked = true;
        }
    }

    /// Returns true if Windlass did all that the reference did, and perhaps more: the same lines in the log, and the same
    /// requests to each model.
    pub(super) fn is_windlass_ahead(&self) -> bool {
        has_same_begin(&self.windlass, &self.reference)
    }

    /// Returns true if the reference did all that Windlass did, and perhaps more.
    pub(super) fn is_reference_ahead(&self) -> bool {
        has_same_begin(&self.reference, &self.windlass)
    }

    /// Removes lines of calls from the session of Windlass. The text of a turn goes with its last call, unless the
    /// reference has stored it.
    pub(super) fn forget_stored_calls(&mut self, is_forgotten: impl Fn(&str) -> bool) {
        let before: Vec<String> = lines(&self.windlass["session"]).map(str::to_owned).collect();
        let is_call = |line: Option<&String>| line.is_some_and(|line| line.starts_with("call "));
        let texts: Vec<&String> = before
            .iter()
            .enumerate()
            .filter(|(at, line)| line.starts_with("assistant: ") && is_call(before.get(at + 1)))
            .map(|(_, line)| line)
            .filter(|text| !lines(&self.reference["session"]).any(|known| known == text.as_str()))
            .collect();
        let left: Vec<String> = before.iter().filter(|line| !is_forgotten(line)).cloned().collect();
        if left.len() == before.len() {
            return;
        }
        let is_kept = |(at, line): &(usize, &String)| !texts.contains(line) || is_call(left.get(at + 1));
        self.windlass["session"] =
            left.iter().enumerate().filter(is_kept).map(|(_, line)| line.clone()).collect();
    }

    /// Returns true if both runs failed, with the same kind of error.
    pub(super) fn has_same_failure(&self) -> bool {
        self.reference["status"] == "failed"
            && self.windlass["status"] == "failed"
            && self.reference["error"]["kind"] == self.windlass["error"]["kind"]
    }
}

/// The responses with which two runs may go apart.
struct ForkPlace {
    /// The number of the first such response of each agent that has one, from 0.
    responses: Vec<(String, usize)>,
}

impl ForkPlace {
    fn new(scenario: &Value, calls: &[String]) -> Self {
        let is_fork = |call: &Value| calls.iter().any(|id| call["id"] == id.as_str());
        let place = |agent: &Value| {
            list_items(&agent["script"]).position(|step| list_items(&step["calls"]).any(is_fork))
        };
        let agents = scenario["agents"].as_object().into_iter().flatten();
        let responses = agents.filter_map(|(name, agent)| Some((name.clone(), place(agent)?))).collect();
        Self { responses }
    }

    /// Returns what an outcome has before the fork. A part without a fork is null.
    fn cut(&self, outcome: &Value, calls: &[String], is_single_run: bool) -> Value {
        let log: Vec<&str> = lines(&outcome["log"]).collect();
        let starts = self.responses.iter().filter_map(|(agent, response)| {
            let line = format!("llm start {agent}");
            let mut places = log.iter().enumerate().filter(|(_, other)| **other == line);
            places.nth(*response).map(|(place, _)| place)
        });
        let mut before = serde_json::Map::new();
        if let Some(end) = starts.min() {
            let mut asked: BTreeMap<&str, usize> = BTreeMap::new();
            for agent in log[..=end].iter().filter_map(|line| line.strip_prefix("llm start ")) {
                *asked.entry(agent).or_default() += 1;
            }
            let is_before = |request: &&Value| match asked.get_mut(text(&request["agent"])) {
                Some(left) if *left > 0 => {
                    *left -= 1;
                    true
                }
                Some(_) | None => false,
            };
            let requests: Vec<Value> =
                list_items(&outcome["model_calls"]).filter(is_before).cloned().collect();
            before.insert("model_calls".to_owned(), requests.into());
            before.insert("log".to_owned(), Value::from(&log[..=end]));
        }
        let is_fork = |id: &str| calls.iter().any(|call| call == id);
        let items: Vec<&Value> = list_items(&outcome["items"]).collect();
        let in_items = items.iter().position(|item| item["type"] != "approval" && is_fork(text(&item["id"])));
        if let Some(end) = in_items.filter(|_| is_single_run) {
            before.insert("items".to_owned(), items[..end].iter().copied().cloned().collect());
        }
        let stored: Vec<&str> = lines(&outcome["session"]).collect();
        let in_session = stored.iter().position(|line| is_call_line(line) && is_fork(line_call(line)));
        if let Some(end) = in_session.filter(|_| is_single_run) {
            before.insert("session".to_owned(), Value::from(&stored[..end]));
        }
        before.into()
    }
}

pub(super) fn list_items(value: &Value) -> impl DoubleEndedIterator<Item = &Value> + Clone {
    value.as_array().map(Vec::as_slice).unwrap_or_default().iter()
}

pub(super) fn object_values(value: &Value) -> impl Iterator<Item = &Value> {
    value.as_object().into_iter().flat_map(|fields| fields.values())
}

pub(super) fn text(value: &Value) -> &str {
    value.as_str().unwrap_or_default()
}

pub(super) fn lines(value: &Value) -> impl DoubleEndedIterator<Item = &str> + Clone {
    list_items(value).map(text)
}

/// Returns the call id of a line of history.
pub(super) fn line_call(line: &str) -> &str {
    line.split(' ').nth(1).unwrap_or_default()
}

pub(super) fn is_call_line(line: &str) -> bool {
    line.starts_with("call ") || line.starts_with("output ")
}

/// Returns true if `all` has every line of `some`, as often.
pub(super) fn has_all_lines(all: &Value, some: &Value) -> bool {
    let count = |value: &Value, line: &str| lines(value).filter(|other| *other == line).count();
    lines(some).all(|line| count(some, line) <= count(all, line))
}

/// Returns true if the longer outcome has the log lines and the model requests of the shorter one, and its pauses. The order
/// of outputs in a request and calls under an id that Windlass made do not count.
fn has_same_begin(longer: &Value, shorter: &Value) -> bool {
    let requests = |outcome: &Value, agent: &Value| -> Vec<Vec<String>> {
        let calls = list_items(&outcome["model_calls"]).filter(|call| call["agent"] == *agent);
        let input = |call: &Value| {
            let is_renamed = |line: &str| is_call_line(line) && line_call(line).contains('~');
            let mut input: Vec<String> =
                lines(&call["input"]).filter(|line| !is_renamed(line)).map(str::to_owned).collect();
            input.sort_unstable();
            input
        };
        calls.map(input).collect()
    };
    has_all_lines(&longer["log"], &shorter["log"])
        && list_items(&shorter["rounds"]).zip(list_items(&longer["rounds"])).all(|(one, other)| one == other)
        && list_items(&shorter["model_calls"]).all(|call| {
            let agent = &call["agent"];
            requests(longer, agent).starts_with(&requests(shorter, agent))
        })
}

/// Returns true if the run was cancelled on Windlass.
pub(super) fn is_cancelled(outcome: &Value) -> bool {
    outcome["status"] == "completed" && outcome["final_output"].is_null()
}

/// Returns true if an outcome has a request for the approval of a call.
pub(super) fn is_approval_asked(outcome: &Value, id: &str) -> bool {
    let rounds = list_items(&outcome["rounds"]).flat_map(list_items);
    rounds.chain(list_items(&outcome["pending"])).any(|item| item["id"] == id)
}

/// Conformity of a call's arguments with the parameters of its tool.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ArgumentValidity {
    /// Valid for both.
    Valid,
    /// Valid for the reference, which drops unknown keys.
    UnknownKeys,
    /// Invalid for both.
    Invalid,
}

/// Returns the validity of a call's arguments.
pub(super) fn argument_validity(call: &ScriptedCall<'_>) -> ArgumentValidity {
    let parameters: Vec<(&str, &str)> = if call.tool["kind"] == "agent" {
        vec![("input", "string")]
    } else {
        let fields = call.tool["params"].as_object();
        fields.into_iter().flatten().map(|(name, kind)| (name.as_str(), text(kind))).collect()
    };
    let Some(fields) = call.args.as_object() else { return ArgumentValidity::Invalid };
    let is_valid = parameters.iter().all(|(name, kind)| match fields.get(*name) {
        None => kind.ends_with('?'),
        Some(value) => match kind.trim_end_matches('?') {
            "integer" => value.is_i64(),
            "number" => value.is_number(),
            "boolean" => value.is_boolean(),
            "strings" => value.as_array().is_some_and(|all| all.iter().all(Value::is_string)),
            "object" => value.is_object(),
            _ => value.is_string(),
        },
    });
    let has_unknown = fields.keys().any(|key| !parameters.iter().any(|(name, _)| name == key));
    match (is_valid, has_unknown) {
        (false, _) => ArgumentValidity::Invalid,
        (true, true) => ArgumentValidity::UnknownKeys,
        (true, false) => ArgumentValidity::Valid,
    }
}

/// Returns the effects of the input guardrails that find something in the arguments of a call.
pub(super) fn guardrail_verdicts<'a>(call: &ScriptedCall<'a>) -> impl Iterator<Item = &'a Value> {
    let given = match call.args {
        Value::String(raw) => raw.clone(),
        args => args.to_string(),
    };
    list_items(&call.tool["input_guardrails"])
        .filter(move |guardrail| guardrail["when"] == "always" || given.contains(text(&guardrail["when"])))
        .map(|guardrail| &guardrail["then"])
}
