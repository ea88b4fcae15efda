//! Draws scenarios from a seed. A scenario has several features at once: the seed first selects the features,
//! then every part of the scenario uses the selected ones.

use std::collections::{BTreeMap, BTreeSet};

use serde_json::{Map, Value, json};
use windlass_sim::SimRng;

/// Text that guardrails look for.
const MARKED_WORD: &str = "RED";
/// Number of text responses at the end of each script, so that no script runs out.
const CLOSING_TEXTS: usize = 8;
/// Probability, in percent, that a scenario has a given feature.
const FEATURE_CHANCE: u64 = 28;

/// Probability, in percent, that a scenario has disputed calls.
const DISPUTED_CHANCE: u64 = 5;

/// A subject that a scenario may include.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum ScenarioFeature {
    Approvals,
    ApprovalRules,
    ToolGuardrails,
    RunGuardrails,
    OutputGuardrails,
    Handoffs,
    NestedAgents,
    Failures,
    FatalFailures,
    Timeouts,
    DisabledTools,
    UnknownTools,
    RepeatedIds,
    InvalidArguments,
    ToolChoices,
    StopBehaviour,
    TurnLimits,
    ConcurrencyLimits,
    Streaming,
    Cancellation,
    Sessions,
    SeveralRuns,
    ModelErrors,
    BlockingBodies,
    OtherOutputs,
    PreApprovalGuardrails,
    UnserialisedPauses,
    /// Arguments and decisions about which Windlass and the reference disagree on purpose. The outcomes of such
    /// scenarios can hardly be compared, so they are rare.
    DisputedCalls,
}

const FEATURES: [ScenarioFeature; 27] = [
    ScenarioFeature::Approvals,
    ScenarioFeature::ApprovalRules,
    ScenarioFeature::ToolGuardrails,
    ScenarioFeature::RunGuardrails,
    ScenarioFeature::OutputGuardrails,
    ScenarioFeature::Handoffs,
    ScenarioFeature::NestedAgents,
    ScenarioFeature::Failures,
    ScenarioFeature::FatalFailures,
    ScenarioFeature::Timeouts,
    ScenarioFeature::DisabledTools,
    ScenarioFeature::UnknownTools,
    ScenarioFeature::RepeatedIds,
    ScenarioFeature::InvalidArguments,
    ScenarioFeature::ToolChoices,
    ScenarioFeature::StopBehaviour,
    ScenarioFeature::TurnLimits,
    ScenarioFeature::ConcurrencyLimits,
    ScenarioFeature::Streaming,
    ScenarioFeature::Cancellation,
    ScenarioFeature::Sessions,
    ScenarioFeature::SeveralRuns,
    ScenarioFeature::ModelErrors,
    ScenarioFeature::BlockingBodies,
    ScenarioFeature::OtherOutputs,
    ScenarioFeature::PreApprovalGuardrails,
    ScenarioFeature::UnserialisedPauses,
];

/// Draws the scenario of a seed.
pub fn draw_scenario(seed: u64) -> Value {
    let mut rng = SimRng::for_purpose(seed, "scenario");
    let mut features: BTreeSet<_> = FEATURES.into_iter().filter(|_| rng.chance(FEATURE_CHANCE)).collect();
    if rng.chance(DISPUTED_CHANCE) {
        features.insert(ScenarioFeature::DisputedCalls);
    }
    let draw = ScenarioDraw {
        rng,
        features,
        used_delays: BTreeSet::new(),
        call_ids: Vec::new(),
        made_calls: Vec::new(),
    };
    let mut scenario = draw.finish(seed);
    add_parameters(&mut scenario, &mut SimRng::for_purpose(seed, "parameters"));
    scenario
}

/// Adds a parameter of a rarer kind to some tools, and to most of their calls. Its draws are its own, so that the rest of a
/// seed's scenario does not depend on it.
fn add_parameters(scenario: &mut Value, rng: &mut SimRng) {
    if !rng.chance(30) {
        return;
    }
    let mut added: Vec<(String, &str)> = Vec::new();
    for (name, tool) in scenario["tools"].as_object_mut().into_iter().flatten() {
        if let Some(parameters) = tool["params"].as_object_mut()
            && rng.chance(50)
        {
            // The reference refuses objects in the schema of a function.
            let kind = *rng.pick(&["number", "boolean", "strings"]);
            parameters.insert("x".to_owned(), kind.into());
            added.push((name.clone(), kind));
        }
    }
    let mut arguments: BTreeMap<String, Value> = BTreeMap::new();
    for (_, agent) in scenario["agents"].as_object_mut().into_iter().flatten() {
        let steps = agent["script"].as_array_mut().into_iter().flatten();
        for call in steps.filter_map(|step| step.get_mut("calls")?.as_array_mut()).flatten() {
            let Some((_, kind)) = added.iter().find(|(name, _)| call["name"] == name.as_str()) else {
                continue;
            };
            let value = match *kind {
                "number" => rng.pick(&[json!(2.5), json!(-2.5)]).clone(),
                "boolean" => rng.chance(50).into(),
                _ => rng.pick(&[json!([]), json!(["one", "RED"])]).clone(),
            };
            // A repeated call has the arguments of the first.
            let key = format!("{} {} {}", call["id"], call["name"], call["args"]);
            if let Some(given) = call["args"].as_object_mut() {
                let value = arguments.entry(key).or_insert(value).clone();
                given.insert("x".to_owned(), value);
            }
        }
    }
}

/// The state of a drawing in progress.
struct ScenarioDraw {
    rng: SimRng,
    features: BTreeSet<ScenarioFeature>,
    /// Delays in use. Every delay is used once, so that no two timers of a run expire together.
    used_delays: BTreeSet<u64>,
    /// Call ids in use.
    call_ids: Vec<String>,
    /// Calls of all scripts.
    made_calls: Vec<Value>,
}

impl ScenarioDraw {
    fn has(&self, feature: ScenarioFeature) -> bool {
        self.features.contains(&feature)
    }

    /// Returns true with a probability of `percent` in 100 if the scenario has the feature.
    fn chance_of(&mut self, feature: ScenarioFeature, percent: u64) -> bool {
        self.has(feature) && self.rng.chance(percent)
    }

    fn pick<T: Clone>(&mut self, from: &[T]) -> T {
        self.rng.pick(from).clone()
    }

    fn delay(&mut self) -> u64 {
        loop {
            let delay = 5 + self.rng.below(4000);
            if self.used_delays.insert(delay) {
                return delay;
            }
        }
    }

    fn finish(mut self, seed: u64) -> Value {
        let main_agents: Vec<&str> = match self.has(ScenarioFeature::Handoffs) {
            true => ["main", "second", "third"][..2 + self.rng.index(2)].to_vec(),
            false => vec!["main"],
        };
        let nested_agents: Vec<&str> = match self.has(ScenarioFeature::NestedAgents) {
            true => ["inner", "deep"][..1 + self.rng.index(2)].to_vec(),
            false => Vec::new(),
        };
        let functions: Vec<String> = (0..2 + self.rng.index(4)).map(|at| format!("t{at}")).collect();
        let mut tools = Map::new();
        for name in &functions {
            let spec = self.function_tool(name);
            tools.insert(name.clone(), spec);
        }
        for agent in &nested_agents {
            let mut spec = json!({ "kind": "agent", "agent": agent });
            if self.chance_of(ScenarioFeature::Approvals, 20) {
                spec["approval"] = true.into();
            }
            tools.insert(format!("ask_{agent}"), spec);
        }
        let mut agents = Map::new();
        for name in &main_agents {
            let handoffs = main_agents.iter().filter(|other| *other != name).copied().collect();
            let spec = self.agent(name, &functions, handoffs, nested_agents.first().copied(), &tools);
            agents.insert((*name).to_owned(), spec);
        }
        for (at, name) in nested_agents.iter().enumerate() {
            let spec = self.agent(name, &functions, Vec::new(), nested_agents.get(at + 1).copied(), &tools);
            agents.insert((*name).to_owned(), spec);
        }
        self.give_calls_their_own_behaviour(&mut tools);
        let run = self.run();
        let runs = if run["session"] == true && self.has(ScenarioFeature::SeveralRuns) { 2 } else { 1 };
        let inputs: Vec<Value> = (0..runs).map(|_| self.marked_text("go").into()).collect();
        let decisions = self.decisions();
        let mut context = Map::new();
        for key in ["k0", "k1"] {
            context.insert(key.to_owned(), self.rng.chance(70).into());
        }
        json!({
            "name": format!("random_{seed}"),
            "agents": agents,
            "tools": tools,
            "start": "main",
            "input": if runs == 1 { inputs[0].clone() } else { inputs.into() },
            "context": context,
            "run": run,
            "decisions": decisions,
            // Time is simulated: all bodies end before the log is read.
            "settle_ms": 60_000,
        })
    }

    /// Returns true if a call may fail the run.
    fn can_fail_run(&self) -> bool {
        self.has(ScenarioFeature::FatalFailures)
            || self.has(ScenarioFeature::ToolGuardrails)
            || self.has(ScenarioFeature::Timeouts)
    }

    fn marked_text(&mut self, text: &str) -> String {
        if self.rng.chance(30) { format!("{text} {MARKED_WORD}") } else { text.to_owned() }
    }

    fn function_tool(&mut self, name: &str) -> Value {
        let mut spec = Map::new();
        let parameters = match self.rng.below(4) {
            0 => json!({}),
            1 => json!({ "n": "integer" }),
            2 => json!({ "n": "integer", "s": "string?" }),
            _ => json!({ "s": "string" }),
        };
        let has_number = parameters.get("n").is_some();
        spec.insert("params".to_owned(), parameters);
        let is_blocking = self.chance_of(ScenarioFeature::BlockingBodies, 30);
        let is_blocking = is_blocking && !self.can_fail_run();
        if is_blocking {
            spec.insert("sync".to_owned(), true.into());
        }
        spec.insert("does".to_owned(), self.behaviour(is_blocking));
        if self.has(ScenarioFeature::FatalFailures) && self.rng.chance(40) {
            spec.insert("on_failure".to_owned(), "propagate".into());
        } else if self.chance_of(ScenarioFeature::Failures, 30) {
            spec.insert("on_failure".to_owned(), json!({ "message": "it said {error}, sorry" }));
        }
        if !is_blocking && self.chance_of(ScenarioFeature::Timeouts, 45) {
            spec.insert("timeout_ms".to_owned(), self.delay().into());
            if self.rng.chance(40) {
                spec.insert("on_timeout".to_owned(), "raise_exception".into());
            }
        }
        if has_number && self.chance_of(ScenarioFeature::ApprovalRules, 60) {
            spec.insert("approval".to_owned(), json!({ "arg": "n", "above": 5 }));
        } else if self.chance_of(ScenarioFeature::Approvals, 50) {
            spec.insert("approval".to_owned(), true.into());
        }
        if self.chance_of(ScenarioFeature::DisabledTools, 40) {
            let enabled = match self.rng.below(4) {
                0 => json!(false),
                1 | 2 => json!({ "context": "k0" }),
                _ => json!({ "context": "k1" }),
            };
            spec.insert("enabled".to_owned(), enabled);
        }
        for (kind, prefix) in [("input_guardrails", "gi"), ("output_guardrails", "go")] {
            if self.chance_of(ScenarioFeature::ToolGuardrails, 45) {
                let count = 1 + self.rng.index(2);
                let guardrails: Vec<Value> =
                    (0..count).map(|at| self.tool_guardrail(name, prefix, at)).collect();
                spec.insert(kind.to_owned(), guardrails.into());
            }
        }
        spec.into()
    }

    /// Draws a guardrail. Its name ends with that of its tool, so that a line of the log belongs to one call even if two
    /// calls share an id.
    fn tool_guardrail(&mut self, tool: &str, prefix: &str, at: usize) -> Value {
        // Texts of failures may differ: nothing else occurs in one and not in the other.
        let when = self.pick(&["always", MARKED_WORD, "o"]);
        let then = match self.rng.below(5) {
            0 => json!("raise"),
            1 | 2 => json!("allow"),
            _ => json!({ "reject": format!("{prefix}{at} refuses") }),
        };
        json!({ "name": format!("{prefix}{at}_{tool}"), "when": when, "then": then })
    }

    fn behaviour(&mut self, is_blocking: bool) -> Value {
        let mut does = Map::new();
        // Bodies that end at once would end together with a fatal failure; which one is first is a matter of
        // scheduling.
        if !is_blocking && (self.can_fail_run() || self.rng.chance(65)) {
            does.insert("sleep_ms".to_owned(), self.delay().into());
        }
        if self.rng.chance(15) {
            let key = self.pick(&["k0", "k1"]);
            does.insert("set".to_owned(), json!({ key: self.rng.chance(50) }));
        }
        let can_fail = self.has(ScenarioFeature::Failures) || self.has(ScenarioFeature::FatalFailures);
        if can_fail && self.rng.chance(35) {
            does.insert("raise".to_owned(), "broke".into());
            return does.into();
        }
        match self.rng.below(4) {
            0 => does.insert("echo".to_owned(), true.into()),
            1 if self.has(ScenarioFeature::OtherOutputs) => {
                let outputs = [json!(12), json!(null), json!({ "k": [1, true] }), json!(""), json!(1.5)];
                does.insert("return".to_owned(), self.pick(&outputs))
            }
            _ => {
                let text = self.marked_text("out");
                does.insert("return".to_owned(), text.into())
            }
        };
        does.into()
    }

    /// Gives some calls a behaviour that differs from that of their tool.
    fn give_calls_their_own_behaviour(&mut self, tools: &mut Map<String, Value>) {
        for call in self.made_calls.clone() {
            let (name, id) =
                (call["name"].as_str().unwrap_or_default(), call["id"].as_str().unwrap_or_default());
            let Some(spec) = tools.get_mut(name).filter(|spec| spec.get("does").is_some()) else { continue };
            // Two calls with the same delay would end together.
            if self.can_fail_run() || self.rng.chance(20) {
                let is_blocking = spec["sync"] == true;
                spec["does_for"][id] = self.behaviour(is_blocking);
            }
        }
    }

    fn agent(
        &mut self,
        name: &str,
        functions: &[String],
        handoffs: Vec<&str>,
        nested: Option<&str>,
        tools: &Map<String, Value>,
    ) -> Value {
        let mut own: Vec<String> = functions.iter().filter(|_| self.rng.chance(80)).cloned().collect();
        own.extend(nested.map(|agent| format!("ask_{agent}")));
        let mut spec = Map::new();
        let handoffs: Vec<&str> = handoffs.into_iter().filter(|_| self.rng.chance(80)).collect();
        if self.chance_of(ScenarioFeature::ToolChoices, 60) {
            let mut choices = vec!["auto".to_owned(), "required".to_owned(), "none".to_owned()];
            choices.extend(own.iter().cloned());
            spec.insert("tool_choice".to_owned(), self.pick(&choices).into());
            if self.rng.chance(40) {
                spec.insert("reset_tool_choice".to_owned(), false.into());
            }
        }
        if self.chance_of(ScenarioFeature::StopBehaviour, 60) {
            let behaviour = match self.rng.below(3) {
                0 => json!("stop_on_first_tool"),
                1 => json!("run_llm_again"),
                _ => {
                    let count = 1 + self.rng.index(2);
                    json!({ "stop_at": (0..count).map(|_| self.pick(functions)).collect::<Vec<_>>() })
                }
            };
            spec.insert("tool_use_behavior".to_owned(), behaviour);
        }
        for (kind, feature, prefix) in [
            ("input_guardrails", ScenarioFeature::RunGuardrails, "ri"),
            ("output_guardrails", ScenarioFeature::OutputGuardrails, "ro"),
        ] {
            if self.chance_of(feature, 70) {
                let count = 1 + self.rng.index(2);
                let guardrails: Vec<Value> =
                    (0..count).map(|at| self.run_guardrail(&format!("{prefix}{at}_{name}"), kind)).collect();
                spec.insert(kind.to_owned(), guardrails.into());
            }
        }
        let script = self.script(name, &own, &handoffs, functions, tools);
        spec.insert("tools".to_owned(), own.into());
        spec.insert("handoffs".to_owned(), handoffs.into());
        spec.insert("script".to_owned(), script.into());
        spec.into()
    }

    fn run_guardrail(&mut self, name: &str, kind: &str) -> Value {
        let trips_on = self.pick(&[MARKED_WORD, "absent", "absent"]);
        let mut spec = json!({ "name": name, "trips_on": trips_on });
        if kind == "input_guardrails" && self.rng.chance(40) {
            spec["parallel"] = false.into();
        }
        if self.rng.chance(40) {
            spec["sleep_ms"] = self.delay().into();
        }
        if self.rng.chance(8) {
            spec["raise"] = "guardrail broke".into();
        }
        spec
    }

    fn script(
        &mut self,
        agent: &str,
        own: &[String],
        handoffs: &[&str],
        functions: &[String],
        tools: &Map<String, Value>,
    ) -> Vec<Value> {
        let mut script = Vec::new();
        for _ in 0..1 + self.rng.index(3) {
            if self.chance_of(ScenarioFeature::ModelErrors, 12) {
                script.push(json!({ "error": "no answer" }));
                continue;
            }
            let mut step = Map::new();
            if self.rng.chance(20) {
                // Every text occurs once, so that a line of history names its turn.
                let text = format!("so {}", self.call_ids.len());
                step.insert("text".to_owned(), self.marked_text(&text).into());
            }
            let mut calls = Vec::new();
            for _ in 0..1 + self.rng.index(4) {
                let Some(call) = self.call(agent, own, handoffs, functions, tools) else { continue };
                // Two runs of one nested agent would compete for the responses of its script.
                let is_nested =
                    |call: &Value| call["name"].as_str().is_some_and(|name| name.starts_with("ask_"));
                if !(is_nested(&call) && calls.iter().any(is_nested)) {
                    calls.push(call);
                }
            }
            if !calls.is_empty() {
                step.insert("calls".to_owned(), calls.into());
            }
            if !step.is_empty() {
                script.push(step.into());
            }
        }
        for at in 0..CLOSING_TEXTS {
            let text = self.marked_text(&format!("end {at} of {agent}"));
            script.push(json!({ "text": text }));
        }
        script
    }

    fn call(
        &mut self,
        agent: &str,
        own: &[String],
        handoffs: &[&str],
        functions: &[String],
        tools: &Map<String, Value>,
    ) -> Option<Value> {
        // A model may repeat a call, also that of another agent.
        if !self.made_calls.is_empty() && self.chance_of(ScenarioFeature::RepeatedIds, 20) {
            return Some(self.pick(&self.made_calls.clone()));
        }
        let name = if self.chance_of(ScenarioFeature::UnknownTools, 15) {
            self.pick(&[
                "missing".to_owned(),
                "transfer_to_nobody".to_owned(),
                self.rng.clone().pick(functions).clone(),
            ])
        } else if !handoffs.is_empty() && self.rng.chance(35) {
            format!("transfer_to_{}", self.pick(handoffs))
        } else if !own.is_empty() {
            self.pick(own)
        } else {
            return None;
        };
        let id = if self.chance_of(ScenarioFeature::RepeatedIds, 8) && !self.call_ids.is_empty() {
            self.pick(&self.call_ids.clone())
        } else {
            let id = format!("{}{}", &agent[..1], self.call_ids.len() + 1);
            self.call_ids.push(id.clone());
            id
        };
        let is_disputed = self.chance_of(ScenarioFeature::DisputedCalls, 50);
        let has_rule = tools.get(&name).is_some_and(|spec| spec["approval"].is_object());
        let is_gated = has_rule || tools.get(&name).is_some_and(|spec| spec["approval"] == true);
        let mut args = match tools.get(&name) {
            Some(spec) if spec["kind"] == "agent" => json!({ "input": self.marked_text("please") }),
            Some(spec) => self.arguments(&spec["params"], has_rule && !is_disputed),
            None => json!({}),
        };
        if is_disputed && self.rng.chance(50) {
            args["extra"] = json!([7]);
        } else if (is_disputed || !is_gated) && self.chance_of(ScenarioFeature::InvalidArguments, 25) {
            args = self.invalid_arguments(args);
        }
        let call = json!({ "id": id, "name": name, "args": args });
        self.made_calls.push(call.clone());
        Some(call)
    }

    fn arguments(&mut self, parameters: &Value, is_complete: bool) -> Value {
        let mut args = Map::new();
        if parameters.get("n").is_some() {
            args.insert("n".to_owned(), self.rng.below(11).into());
        }
        match parameters["s"].as_str() {
            Some("string?") if !is_complete && self.rng.chance(50) => {}
            Some(_) => {
                args.insert("s".to_owned(), self.marked_text("word").into());
            }
            None => {}
        }
        args.into()
    }

    fn invalid_arguments(&mut self, mut args: Value) -> Value {
        let first = args.as_object().and_then(|args| args.keys().next().cloned());
        match (self.rng.below(4), first) {
            (0, Some(key)) => {
                args[key] = json!([7]);
                args
            }
            (1, Some(_)) => json!({}),
            (2, _) => json!("[1]"),
            _ => json!("{\"n\": "),
        }
    }

    fn run(&mut self) -> Value {
        let mut run = Map::new();
        if self.has(ScenarioFeature::TurnLimits) {
            run.insert("max_turns".to_owned(), (1 + self.rng.below(3)).into());
        }
        if self.has(ScenarioFeature::ConcurrencyLimits) {
            run.insert("concurrency".to_owned(), (1 + self.rng.below(3)).into());
        }
        if self.rng.chance(75) {
            run.insert("tool_not_found".to_owned(), "return_error_to_model".into());
        }
        if self.has(ScenarioFeature::PreApprovalGuardrails) {
            run.insert("pre_approval_guardrails".to_owned(), true.into());
        }
        if self.has(ScenarioFeature::Sessions) || self.has(ScenarioFeature::SeveralRuns) {
            run.insert("session".to_owned(), true.into());
        }
        if self.has(ScenarioFeature::UnserialisedPauses) {
            run.insert("serialise".to_owned(), false.into());
        }
        if self.has(ScenarioFeature::Streaming) || self.has(ScenarioFeature::Cancellation) {
            run.insert("stream".to_owned(), true.into());
        }
        if self.has(ScenarioFeature::Cancellation) {
            let events = [
                "tool_called",
                "tool_output",
                "message_output_created",
                "handoff_requested",
                "handoff_occured",
                "agent main",
                "agent second",
            ];
            run.insert("cancel_on".to_owned(), self.pick(&events).into());
            run.insert("cancel_mode".to_owned(), self.pick(&["after_turn", "immediate"]).into());
        }
        run.into()
    }

    /// Draws decisions about all calls for several pauses, because the calls of a pause are not known yet.
    fn decisions(&mut self) -> Vec<Value> {
        let mut ids = self.call_ids.clone();
        ids.sort();
        ids.dedup();
        let rounds = self.rng.index(8);
        (0..rounds)
            .map(|_| {
                let (mut approve, mut always, mut never) = (Vec::new(), Vec::new(), Vec::new());
                let mut reject = Map::new();
                // Standing decisions and decisions about single calls of one tool are disputed.
                let is_mixed = self.has(ScenarioFeature::DisputedCalls);
                let kind = self.rng.below(5);
                for id in &ids {
                    match self.rng.below(12) {
                        0..=4 if kind > 1 || is_mixed => approve.push(id.clone()),
                        5..=6 if kind == 0 || is_mixed => always.push(id.clone()),
                        7..=8 if kind == 1 || is_mixed => never.push(id.clone()),
                        9 if kind > 1 || is_mixed => drop(reject.insert(id.clone(), Value::Null)),
                        10 if kind > 1 || is_mixed => drop(reject.insert(id.clone(), "not now".into())),
                        _ => {}
                    }
                }
                let mut round = Map::new();
                for (key, list) in [("approve", approve), ("always", always), ("never", never)] {
                    if !list.is_empty() {
                        round.insert(key.to_owned(), list.into());
                    }
                }
                if !reject.is_empty() {
                    round.insert("reject".to_owned(), reject.into());
                }
                round.into()
            })
            .collect()
    }
}
