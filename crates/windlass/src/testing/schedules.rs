//! The contract of the schedules of a queue.

use windlass_core::id::{RunId, Timestamp};

use super::check::StoreCheck;
use crate::fleet::{
    MissedTimes, QueueFilter, RunQueue, RunSchedule, RunSubmission, StoredSchedule, fire_schedules,
};

const MINUTE: u64 = 60_000;
const HOUR: u64 = 60 * MINUTE;

/// Returns a schedule with a time at each full hour.
fn hourly(name: &str) -> RunSchedule {
    match "0 * * * *".parse() {
        Ok(times) => RunSchedule::new(name, times, RunSubmission::new("any", "agent", "go")),
        Err(error) => panic!("{error}"),
    }
}

async fn submitted<Q: RunQueue>(check: StoreCheck, queue: &Q) -> Vec<String> {
    let runs =
        check.expect_ok("listing the queue", queue.list_queued_runs(QueueFilter::Open, None, 99).await);
    runs.iter().map(|queued| queued.submission.run.to_string()).collect()
}

/// Schedules are kept, replaced and removed by their name; only the worker that has seen the last state advances it.
pub(super) async fn schedules_are_kept<Q: RunQueue>(check: StoreCheck, queue: Q) {
    let schedule = hourly("report");
    let at = |time| Timestamp(time);
    check.expect_ok("saving", queue.save_schedule(&schedule, at(5)).await);
    check.expect_ok("advancing", queue.advance_schedule("report", at(5), at(9)).await);
    check.expect_ok("advancing from an earlier state", queue.advance_schedule("report", at(5), at(99)).await);
    check.expect_ok("saving the same", queue.save_schedule(&schedule, at(50)).await);
    let listed = check.expect_ok("listing", queue.list_schedules().await);
    let stored = StoredSchedule { schedule: schedule.clone(), covered_until: at(9) };
    check.expect_equal("the schedule", listed, vec![stored]);
    let changed = schedule.missed(MissedTimes::Skip);
    check.expect_ok("replacing", queue.save_schedule(&changed, at(70)).await);
    let listed = check.expect_ok("listing", queue.list_schedules().await);
    let stored = StoredSchedule { schedule: changed, covered_until: at(70) };
    check.expect_equal("the new schedule", listed, vec![stored]);
    let removed = check.expect_ok("removing", queue.remove_schedule("report").await);
    let again = check.expect_ok("removing again", queue.remove_schedule("report").await);
    check.expect_equal("what was removed", (removed, again), (true, false));
    check.expect_equal("the rest", check.expect_ok("listing", queue.list_schedules().await), Vec::new());
}

/// Each time submits one run, whoever fires the schedule and how often; missed times are treated by their policy.
pub(super) async fn schedules_submit_runs<Q: RunQueue>(check: StoreCheck, queue: Q) {
    let schedule = hourly("report");
    let at = |time| Timestamp(time);
    check.expect_ok("saving", queue.save_schedule(&schedule, at(HOUR / 2)).await);
    let early = check.expect_ok("firing early", fire_schedules(&queue, at(HOUR - 1)).await);
    check.expect_equal("the runs before the first time", early, 0);
    let (one, two) =
        futures_util::future::join(fire_schedules(&queue, at(HOUR)), fire_schedules(&queue, at(HOUR))).await;
    let fired = check.expect_ok("firing", one) + check.expect_ok("firing at once", two);
    check.expect_equal("the runs of the first time", fired, 1);
    // A worker died after it had submitted the run of the next time, and before it noted it.
    let next = RunSubmission { run: schedule.run_id_at(at(2 * HOUR)), ..schedule.submission.clone() };
    check.expect_ok("submitting", queue.submit_run(&next, at(2 * HOUR)).await);
    let repeated = check.expect_ok("firing again", fire_schedules(&queue, at(2 * HOUR + 1)).await);
    check.expect_equal("the runs of a time that was dealt with", repeated, 0);
    let of_time = |name: &str, hour: u64| format!("{name}@{}", hour * HOUR / 1_000);
    check.expect_equal(
        "the runs",
        submitted(check, &queue).await,
        vec![of_time("report", 1), of_time("report", 2)],
    );
    // Three times pass while no worker is there.
    let policies = [
        ("skip", MissedTimes::Skip, vec![]),
        ("latest", MissedTimes::RunLatest, vec![5]),
        ("some", MissedTimes::RunAll { limit: 2 }, vec![4, 5]),
        ("all", MissedTimes::RunAll { limit: 9 }, vec![3, 4, 5]),
    ];
    check.expect_ok("removing", queue.remove_schedule("report").await);
    for (name, missed, hours) in policies {
        let schedule = hourly(name).missed(missed);
        check.expect_ok("saving", queue.save_schedule(&schedule, at(2 * HOUR)).await);
        let late = at(5 * HOUR + 2 * MINUTE);
        let fired = check.expect_ok("firing late", fire_schedules(&queue, late).await);
        check.expect_equal(name, fired, hours.len() as u64);
        for hour in hours {
            let run = RunId::from(of_time(name, hour));
            let queued = check.expect_ok("loading", queue.load_queued_run(&run).await);
            check.expect_equal("the run of a missed time is submitted", queued.is_some(), true);
        }
        let fired = check.expect_ok("firing on time", fire_schedules(&queue, at(6 * HOUR + 1)).await);
        check.expect_equal("the run of a time that was not missed", fired, 1);
        check.expect_ok("removing", queue.remove_schedule(name).await);
    }
}
