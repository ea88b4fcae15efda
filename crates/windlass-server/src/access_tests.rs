use super::*;

fn policy() -> AccessPolicy {
    AccessPolicy::default()
        .with_person(
            "anna",
            TokenDigest::of_token("a-token"),
            [("clerk", AccessRole::Approve), ("*", AccessRole::View)],
        )
        .with_person("root", TokenDigest::of_token("r-token"), [("*", AccessRole::Administer)])
}

fn identify(policy: &AccessPolicy, token: &str) -> Option<PersonIdentity> {
    policy.identify(RequestEvidence { token: Some(token), proxy_name: None })
}

#[test]
fn a_token_names_its_person_and_nobody_else() {
    let policy = policy();
    assert_eq!(identify(&policy, "a-token").map(|person| person.name), Some("anna".to_owned()));
    assert_eq!(identify(&policy, "r-token").map(|person| person.name), Some("root".to_owned()));
    for wrong in ["", "a-toke", "a-token ", "A-TOKEN"] {
        assert_eq!(identify(&policy, wrong), None, "{wrong:?}");
    }
    assert_eq!(policy.identify(RequestEvidence::default()), None);
}

#[test]
fn rights_are_by_agent_and_no_right_includes_another_but_view() {
    let anna = identify(&policy(), "a-token").unwrap();
    let (clerk, bank) = (AgentName::from("clerk"), AgentName::from("bank"));
    assert!(anna.may(AccessRole::Approve, &clerk) && anna.may(AccessRole::View, &bank));
    assert!(!anna.may(AccessRole::Run, &clerk) && !anna.may(AccessRole::Approve, &bank));
    assert!(!anna.may(AccessRole::Administer, &clerk) && !anna.may_everywhere(AccessRole::Approve));
    let root = identify(&policy(), "r-token").unwrap();
    assert!(root.may(AccessRole::Approve, &bank) && root.may_everywhere(AccessRole::Administer));
}

#[test]
fn only_a_trusted_address_names_people_by_header() {
    let mut policy = policy();
    assert_eq!(policy.identity_header("10.0.0.1".parse().unwrap()), None);
    policy.proxy =
        Some(TrustedProxy { addresses: vec!["10.0.0.1".parse().unwrap()], header: "X-User".to_owned() });
    assert_eq!(policy.identity_header("10.0.0.1".parse().unwrap()), Some("X-User"));
    assert_eq!(policy.identity_header("::ffff:10.0.0.1".parse().unwrap()), Some("X-User"));
    assert_eq!(policy.identity_header("10.0.0.2".parse().unwrap()), None);
    let by_name = |name| policy.identify(RequestEvidence { token: None, proxy_name: Some(name) });
    assert_eq!(by_name("anna").map(|person| person.name), Some("anna".to_owned()));
    assert_eq!(by_name("eve"), None);
}

#[test]
fn a_token_is_in_no_debug_text_and_a_digest_round_trips() {
    let policy = policy();
    let shown = format!("{policy:?}");
    let digest = TokenDigest::of_token("a-token");
    assert!(!shown.contains("a-token") && !shown.contains(&digest.to_string()));
    assert_eq!(digest.to_string().parse::<TokenDigest>(), Ok(digest));
    assert!("12".parse::<TokenDigest>().is_err());
}
