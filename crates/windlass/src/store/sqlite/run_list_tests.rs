//! The plans of SQLite for the lists of runs.

use windlass_core::id::{AgentName, RunId, SessionId, Timestamp};

use super::*;
use crate::store::RunCursor;

fn plan_of(query: &RunQuery) -> String {
    let db = Connection::open_in_memory().expect("a database");
    super::super::schema::create_schema(&db).expect("a schema");
    let (select, values) = select_runs(query);
    let mut explained = db.prepare(&format!("EXPLAIN QUERY PLAN {select}")).expect("a statement");
    let steps = explained.query_map(params_from_iter(values), |row| row.get::<_, String>(3));
    steps.expect("a plan").collect::<Result<Vec<_>, _>>().expect("steps").join("; ")
}

#[test]
fn no_list_of_runs_reads_the_whole_table() {
    let page = RunQuery { limit: 50, ..RunQuery::default() };
    let after = Some(RunCursor { created_at: Timestamp(7), run: RunId::from("r") });
    let agent = Some(AgentName::from("clerk"));
    let open = vec![RunStatus::Paused, RunStatus::Running];
    let session = Some(SessionId::from("s"));
    for (query, index) in [
        (page.clone(), "runs_by_creation"),
        (RunQuery { after: after.clone(), ..page.clone() }, "runs_by_creation"),
        (RunQuery { agent: agent.clone(), ..page.clone() }, "runs_by_agent"),
        (RunQuery { agent, statuses: open.clone(), ..page.clone() }, "runs_by_agent"),
        (RunQuery { statuses: vec![RunStatus::Failed], ..page.clone() }, "runs_by_status"),
        (RunQuery { statuses: open, after, ..page.clone() }, "runs_by_status"),
        (RunQuery { session, ..page }, "runs_by_session"),
    ] {
        let plan = plan_of(&query);
        assert!(plan.contains(&format!("INDEX {index}")), "{query:?}: {plan}");
        assert!(!plan.contains("SCAN runs;") && !plan.ends_with("SCAN runs"), "{query:?}: {plan}");
    }
}
