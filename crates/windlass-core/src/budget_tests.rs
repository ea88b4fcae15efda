use super::*;

fn path(calls: &[&str]) -> Vec<CallId> {
    calls.iter().map(|call| CallId::from(*call)).collect()
}

fn request(tokens: u64) -> BudgetSpending {
    BudgetSpending { requests: 1, tokens, ..BudgetSpending::default() }
}

fn check(ledger: &BudgetLedger, own: &[CallId], tokens: u64, under_way: &[Vec<CallId>]) -> BudgetVerdict {
    let estimate = request(tokens);
    ledger.check(&BudgetQuery { path: own, agent_budgets: &[], estimate, active_ms: 0, under_way })
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
fn a_ledger_survives_its_serialised_form() {
    let mut ledger = BudgetLedger::new(Some(SpendingBudget::new().cost(0.5).ask_person()), None);
    ledger.reserve(&path(&["a"]), vec!["clerk".into()], request(60), 5);
    let text = serde_json::to_string(&ledger).unwrap_or_default();
    assert_eq!(serde_json::from_str::<BudgetLedger>(&text).ok(), Some(ledger));
}
