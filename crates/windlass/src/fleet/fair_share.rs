//! Fairness: the order in which ready runs are taken.
//!
//! Invariant: a tenant with runs to take waits for at most one run of every other tenant, whatever their backlogs and
//! priorities are (start-time fair queueing).

use std::collections::BTreeMap;

/// The key of a share: a scope and a name in it, or the clock of the scope.
pub type ShareKey = (String, String);

/// The ready runs of one tenant and one agent, the first to take first.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ReadyLane {
    /// The tenant.
    pub tenant: String,
    /// The agent.
    pub agent: String,
    /// The runs, by priority and then by the time at which they became ready.
    pub candidates: Vec<LaneCandidate>,
}

/// A ready run.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LaneCandidate {
    /// Id of the run.
    pub run: String,
    /// Its priority among the runs of the tenant.
    pub priority: i32,
}

/// The service that tenants and their agents have had, as virtual times. A store keeps them.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct FairShares {
    times: BTreeMap<ShareKey, u64>,
    changed: BTreeMap<ShareKey, u64>,
}

/// Scope of the tenants.
const TENANTS: &str = "";
/// Name of a scope's clock. Names of tenants and agents have a prefix.
const CLOCK: &str = "clock";

impl FairShares {
    /// Creates shares from the stored virtual times.
    pub fn new(times: impl IntoIterator<Item = (ShareKey, u64)>) -> Self {
        Self { times: times.into_iter().collect(), changed: BTreeMap::new() }
    }

    /// Returns the keys that choosing among these lanes reads.
    pub fn keys_of(lanes: &[ReadyLane]) -> Vec<ShareKey> {
        let mut keys = vec![(TENANTS.to_owned(), CLOCK.to_owned())];
        for lane in lanes {
            let agents = agents_scope(&lane.tenant);
            keys.push((TENANTS.to_owned(), member(&lane.tenant)));
            keys.push((agents.clone(), CLOCK.to_owned()));
            keys.push((agents, member(&lane.agent)));
        }
        keys.sort();
        keys.dedup();
        keys
    }

    /// Returns the virtual times that have changed and must be stored.
    pub fn into_changed(self) -> Vec<(ShareKey, u64)> {
        self.changed.into_iter().collect()
    }

    fn time(&self, scope: &str, name: &str) -> u64 {
        let key = (scope.to_owned(), name.to_owned());
        self.changed.get(&key).or_else(|| self.times.get(&key)).copied().unwrap_or_default()
    }

    /// Returns the virtual time at which a member is served next. One that was idle has no credit.
    fn start_time(&self, scope: &str, name: &str) -> u64 {
        self.time(scope, &member(name)).max(self.time(scope, CLOCK))
    }

    fn serve(&mut self, scope: &str, name: &str) {
        let start = self.start_time(scope, name);
        self.changed.insert((scope.to_owned(), CLOCK.to_owned()), start);
        self.changed.insert((scope.to_owned(), member(name)), start + 1);
    }
}

fn member(name: &str) -> String {
    format!("of {name}")
}

fn agents_scope(tenant: &str) -> String {
    format!("agents of {tenant}")
}

/// Chooses at most `limit` runs to take, in order: the tenant that was served least, of its runs those with the highest
/// priority, of their agents the one that was served least, and of the agent's runs the first.
pub fn choose_fairly(lanes: Vec<ReadyLane>, shares: &mut FairShares, limit: usize) -> Vec<String> {
    let mut lanes: Vec<(ReadyLane, usize)> = lanes.into_iter().map(|lane| (lane, 0)).collect();
    let mut chosen = Vec::new();
    while chosen.len() < limit {
        lanes.retain(|(lane, next)| *next < lane.candidates.len());
        let tenant = lanes.iter().map(|(lane, _)| lane.tenant.clone());
        let Some(tenant) = tenant.min_by_key(|tenant| (shares.start_time(TENANTS, tenant), tenant.clone()))
        else {
            break;
        };
        let scope = agents_scope(&tenant);
        let of_tenant = |(lane, _): &&mut (ReadyLane, usize)| lane.tenant == tenant;
        let best = lanes.iter_mut().filter(of_tenant).min_by_key(|(lane, next)| {
            let priority = lane.candidates.get(*next).map_or(i32::MIN, |run| run.priority);
            (std::cmp::Reverse(priority), shares.start_time(&scope, &lane.agent), lane.agent.clone())
        });
        let Some((lane, next)) = best else { break };
        let Some(run) = lane.candidates.get(*next) else { break };
        chosen.push(run.run.clone());
        *next += 1;
        shares.serve(TENANTS, &tenant);
        shares.serve(&scope, &lane.agent);
    }
    chosen
}

#[cfg(test)]
mod tests {
    use super::*;

    fn lane(tenant: &str, agent: &str, runs: &[(&str, i32)]) -> ReadyLane {
        let candidates =
            runs.iter().map(|(run, priority)| LaneCandidate { run: (*run).to_owned(), priority: *priority });
        ReadyLane { tenant: tenant.to_owned(), agent: agent.to_owned(), candidates: candidates.collect() }
    }

    #[test]
    fn a_backlog_of_one_tenant_does_not_delay_another() {
        let backlog: Vec<String> = (0..100).map(|number| format!("a{number}")).collect();
        let backlog: Vec<(&str, i32)> = backlog.iter().map(|run| (run.as_str(), 9)).collect();
        let lanes = vec![lane("ann", "desk", &backlog), lane("bea", "desk", &[("b0", 0), ("b1", 0)])];
        let chosen = choose_fairly(lanes, &mut FairShares::default(), 5);
        assert_eq!(chosen, ["a0", "b0", "a1", "b1", "a2"]);
    }

    #[test]
    fn shares_are_remembered_and_an_idle_tenant_has_no_credit() {
        let mut times = Vec::new();
        for number in 0..10 {
            let mut shares = FairShares::new(times);
            let run = format!("a{number}");
            assert_eq!(choose_fairly(vec![lane("ann", "desk", &[(&run, 0)])], &mut shares, 1), [run]);
            times = shares.into_changed();
        }
        let mut shares = FairShares::new(times);
        let lanes = || {
            vec![
                lane("ann", "desk", &[("a", 0), ("b", 0), ("c", 0)]),
                lane("bea", "desk", &[("x", 0), ("y", 0), ("z", 0)]),
            ]
        };
        assert_eq!(choose_fairly(lanes(), &mut shares, 6), ["x", "a", "y", "b", "z", "c"]);
    }

    #[test]
    fn priorities_order_the_runs_of_a_tenant_and_equal_ones_alternate_between_agents() {
        let lanes = vec![
            lane("ann", "desk", &[("d1", 5), ("d2", 0), ("d3", 0)]),
            lane("ann", "mail", &[("m1", 0), ("m2", 0)]),
        ];
        let chosen = choose_fairly(lanes, &mut FairShares::default(), 9);
        assert_eq!(chosen, ["d1", "m1", "d2", "m2", "d3"]);
    }
}
