use super::*;

fn path(calls: &[&str]) -> Vec<CallId> {
    calls.iter().map(|call| CallId::from(*call)).collect()
}

fn request(tokens: u64) -> BudgetSpending {
    BudgetSpending { requests: 1, tokens, ..BudgetSpending::default() }
}

fn check(ledger: &BudgetLedger, own: &[CallId], tokens: u64, under_way: &[Vec<CallId>]) -> BudgetVerdict {
    let estimate = request(tokens);
    let query = BudgetQuery {
        path: own,
        agent_budgets: &[],
        estimate,
        active_ms: 0,
        under_way,
        spent_by_others: None,
        is_summary: false,
    };
    ledger.check(&query, BudgetPosition::default())
}

#[test]
fn requests_under_way_are_waited_for_and_those_of_a_dead_process_are_spent() {
    let mut ledger = BudgetLedger::new(Some(SpendingBudget::new().tokens(100)), None);
    let (one, other) = (path(&["a"]), path(&["b"]));
    ledger.reserve(&one, vec!["clerk".into()], request(60), 5);
    assert_eq!(check(&ledger, &other, 50, std::slice::from_ref(&one)), BudgetVerdict::WaitForOthers);
    assert_eq!(check(&ledger, &other, 40, std::slice::from_ref(&one)), BudgetVerdict::Allowed);
    assert!(
        matches!(check(&ledger, &other, 50, &[]), BudgetVerdict::Reached(reached, _) if reached.spent == 60)
    );
    // The answer cost less than was reserved.
    ledger.spend(&one, &["clerk".into()], &Usage::of_tokens(10, 10), true);
    assert_eq!(check(&ledger, &other, 50, &[]), BudgetVerdict::Allowed);
    assert_eq!((ledger.spent().tokens, ledger.reserved().tokens), (20, 0));
}

#[test]
fn a_reservation_that_is_never_answered_is_spent() {
    let mut ledger = BudgetLedger::new(Some(SpendingBudget::new().requests(3)), None);
    let inside = path(&["a", "b"]);
    ledger.reserve(&inside, vec!["clerk".into()], request(10), 0);
    ledger.reserve(&inside, vec!["clerk".into()], request(10), 0);
    assert_eq!((ledger.spent().requests, ledger.reserved().requests), (1, 1));
    ledger.close_call(&[], &"a".into());
    assert_eq!((ledger.spent().requests, ledger.reserved().requests), (2, 0));
    // A provider that does not say what a request has cost is believed to have cost what was estimated.
    ledger.reserve(&[], vec!["desk".into()], request(10), 0);
    ledger.spend(&[], &["desk".into()], &Usage::of_unknown_request(), true);
    assert_eq!((ledger.spent().requests, ledger.spent().tokens), (3, 30));
    let BudgetVerdict::Reached(reached, _) = check(&ledger, &[], 1, &[]) else { panic!("it is reached") };
    ledger.grant(&reached, 1);
    assert_eq!(check(&ledger, &[], 1, &[]), BudgetVerdict::Allowed);
}

#[test]
fn a_run_that_finishes_keeps_room_for_its_last_answer() {
    let mut ledger = BudgetLedger::new(Some(SpendingBudget::new().requests(2).finish()), None);
    assert_eq!(check(&ledger, &[], 0, &[]), BudgetVerdict::Allowed);
    ledger.spend(&[], &[], &Usage::of_tokens(1, 1), true);
    assert!(matches!(check(&ledger, &[], 0, &[]), BudgetVerdict::Reached(_, OnBudgetReached::Finish)));
}

#[test]
fn a_last_answer_is_checked_and_leaves_room_for_those_of_the_callers() {
    let mut ledger = BudgetLedger::new(Some(SpendingBudget::new().requests(4).finish()), None);
    let callers = ["front".into()];
    let check_at = |ledger: &BudgetLedger, last_answer: Option<&ReachedBudget>, under_way: &[Vec<CallId>]| {
        let query = BudgetQuery {
            path: &path(&["b"]),
            agent_budgets: &[],
            estimate: request(0),
            active_ms: 0,
            under_way,
            spent_by_others: None,
            is_summary: false,
        };
        ledger.check(&query, BudgetPosition { callers: &callers, last_answer })
    };
    ledger.spend(&[], &[], &Usage::of_tokens(1, 1), true);
    assert_eq!(check_at(&ledger, None, &[]), BudgetVerdict::Allowed);
    ledger.reserve(&path(&["a"]), vec!["clerk".into()], request(0), 0);
    let sent = [path(&["a"])];
    assert_eq!(check_at(&ledger, None, &sent), BudgetVerdict::WaitForOthers);
    ledger.spend(&path(&["a"]), &["clerk".into()], &Usage::of_tokens(1, 1), true);
    let BudgetVerdict::Reached(reached, OnBudgetReached::Finish) = check_at(&ledger, None, &[]) else {
        panic!("no request but a last answer fits")
    };
    assert_eq!(check_at(&ledger, Some(&reached), &[]), BudgetVerdict::Allowed);
    ledger.spend(&path(&["b"]), &["clerk".into()], &Usage::of_tokens(1, 1), true);
    // What is left is for the last answer of the caller.
    assert!(matches!(check_at(&ledger, Some(&reached), &[]), BudgetVerdict::Reached(..)));
}

#[test]
fn a_last_answer_of_unknown_cost_is_given_once() {
    let mut ledger = BudgetLedger::new(Some(SpendingBudget::new().cost(1.0).finish()), None);
    fn query(under_way: &[Vec<CallId>]) -> BudgetQuery<'_> {
        BudgetQuery {
            path: &[],
            agent_budgets: &[],
            estimate: BudgetSpending { unpriced_requests: 1, ..request(0) },
            active_ms: 0,
            under_way,
            spent_by_others: None,
            is_summary: false,
        }
    }
    ledger.spend(&[], &[], &Usage::of_tokens(1, 1), true);
    let BudgetVerdict::Reached(reached, _) = ledger.check(&query(&[]), BudgetPosition::default()) else {
        panic!("an unknown cost reaches the limit")
    };
    let last = BudgetPosition { callers: &[], last_answer: Some(&reached) };
    assert_eq!(ledger.check(&query(&[]), last), BudgetVerdict::Allowed);
    ledger.reserve(&path(&["a"]), Vec::new(), query(&[]).estimate, 0);
    let sent = [path(&["a"])];
    assert_eq!(ledger.check(&query(&sent), last), BudgetVerdict::WaitForOthers);
    ledger.spend(&path(&["a"]), &[], &Usage::of_tokens(1, 1), true);
    assert!(matches!(ledger.check(&query(&[]), last), BudgetVerdict::Reached(..)));
}

#[test]
fn the_unknown_cost_of_a_request_refuses_no_summary_beside_it() {
    let mut ledger = BudgetLedger::new(Some(SpendingBudget::new().cost(1.0)), None);
    let own = path(&["a"]);
    let estimate = BudgetSpending { unpriced_requests: 1, ..request(0) };
    ledger.reserve(&own, vec!["clerk".into()], estimate, 0);
    let check = |is_summary| {
        let query = BudgetQuery {
            path: &own,
            agent_budgets: &[],
            estimate: BudgetSpending { cost_nanos: 1_000, ..request(0) },
            active_ms: 0,
            under_way: std::slice::from_ref(&own),
            spent_by_others: None,
            is_summary,
        };
        ledger.check(&query, BudgetPosition::default())
    };
    assert_eq!(check(true), BudgetVerdict::Allowed);
    assert!(matches!(check(false), BudgetVerdict::Reached(..)));
}

#[test]
fn a_ledger_survives_its_serialised_form() {
    let mut ledger = BudgetLedger::new(Some(SpendingBudget::new().cost(0.5).ask_person()), None);
    ledger.reserve(&path(&["a"]), vec!["clerk".into()], request(60), 5);
    let text = serde_json::to_string(&ledger).unwrap_or_default();
    assert_eq!(serde_json::from_str::<BudgetLedger>(&text).ok(), Some(ledger));
}

#[test]
fn a_known_price_may_be_nothing_and_amounts_saturate() {
    let mut ledger = BudgetLedger::new(Some(SpendingBudget::new().cost(1.0)), None);
    // The price of the model is known: it costs nothing.
    ledger.reserve(&[], Vec::new(), request(10), 0);
    ledger.spend(&[], &[], &Usage::of_unknown_request(), true);
    assert_eq!(check(&ledger, &[], 0, &[]), BudgetVerdict::Allowed);
    // It is not known.
    ledger.reserve(&[], Vec::new(), BudgetSpending { unpriced_requests: 1, ..request(10) }, 0);
    ledger.spend(&[], &[], &Usage::of_unknown_request(), true);
    let BudgetVerdict::Reached(reached, _) = check(&ledger, &[], 0, &[]) else { panic!("it is unknown") };
    let all = ReachedBudget { unpriced_requests: u64::MAX, ..reached };
    ledger.grant(&all, u64::MAX);
    ledger.grant(&all, u64::MAX);
    assert_eq!(check(&ledger, &[], 0, &[]), BudgetVerdict::Allowed);
}
