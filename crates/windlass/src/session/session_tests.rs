use windlass_core::item::CallOutput;

use super::*;
use crate::model::{ScriptedModel, ScriptedResponse, describe_item};

fn output_item(call: &str, text: &str) -> Item {
    Item::Output(CallOutput {
        call: call.into(),
        content: text.into(),
        status: windlass_core::item::OutputStatus::Ok,
        sources: Default::default(),
    })
}

fn to_shared_items(items: Vec<Item>) -> Vec<Arc<Item>> {
    items.into_iter().map(Arc::new).collect()
}

fn item_lines(items: &[Arc<Item>]) -> Vec<String> {
    items.iter().map(|item| describe_item(item)).collect()
}

fn two_turns() -> Vec<Arc<Item>> {
    to_shared_items(vec![
        Item::user("first"),
        Item::call("a", "t", "{}"),
        Item::call("b", "t", "{}"),
        output_item("a", "A"),
        output_item("b", "B"),
        Item::assistant("one"),
        Item::user("second"),
        Item::assistant("two"),
    ])
}

#[tokio::test]
async fn a_limit_never_parts_a_call_from_its_output() {
    let session = Session::in_memory("s");
    session.append(two_turns()).await.expect("memory can be written");
    for limit in 0..=8 {
        let items = session.clone().history_limit(limit).items().await.expect("memory can be read");
        assert!(items.len() <= limit);
        assert!(repair_transcript(items.clone()).was_valid(), "limit {limit}: {:?}", item_lines(&items));
    }
    let four = session.history_limit(4).items().await.expect("memory can be read");
    assert_eq!(item_lines(&four), ["assistant: one", "user: second", "assistant: two"]);
}

#[tokio::test]
async fn rewinding_takes_back_whole_exchanges() {
    let session = Session::in_memory("s");
    session.append(two_turns()).await.expect("memory can be written");
    let taken = session.rewind(1).await.expect("nobody else writes");
    assert_eq!(item_lines(&taken), ["user: second", "assistant: two"]);
    assert_eq!(session.items().await.expect("memory can be read").len(), 6);
    session.rewind(9).await.expect("nobody else writes");
    assert_eq!(session.items().await.expect("memory can be read"), []);
}

#[tokio::test]
async fn compaction_keeps_the_newest_and_summarises_the_rest() {
    let session = Session::in_memory("s");
    session.append(two_turns()).await.expect("memory can be written");
    let never = CompactionPolicy::above_items(100, 2);
    assert_eq!(session.compact(&never).await.expect("memory"), CompactionResult::NotNeeded);
    let model = ScriptedModel::new([ScriptedResponse::text("They said hello.")]);
    let by_model = CompactionPolicy::above_tokens(10, 3).with_model(model.clone());
    assert_eq!(session.compact(&by_model).await.expect("memory"), CompactionResult::Summarised { items: 5 });
    assert_eq!(
        item_lines(&session.items().await.expect("memory can be read")),
        [
            "user: [Summary of the conversation so far]\nThey said hello.",
            "assistant: one",
            "user: second",
            "assistant: two"
        ]
    );
    assert_eq!(model.requests().len(), 1);
}

#[tokio::test]
async fn compaction_never_overwrites_what_came_meanwhile() {
    let session = Session::in_memory("s");
    session.append(two_turns()).await.expect("memory can be written");
    let other = session.clone();
    let slow = CompactionPolicy::above_items(2, 2).with_summariser(move |_| {
        let other = other.clone();
        async move {
            other.append(to_shared_items(vec![Item::user("third")])).await?;
            Ok("too late".to_owned())
        }
    });
    assert_eq!(session.compact(&slow).await.expect("memory"), CompactionResult::SessionChanged);
    assert_eq!(session.items().await.expect("memory can be read").len(), 9);
}

#[tokio::test]
async fn an_export_reads_back() {
    let session = Session::in_memory("s");
    session.append(two_turns()).await.expect("memory can be written");
    let text = session.export().await.expect("memory can be read");
    assert_eq!(parse_export(&text).expect("it was just written"), two_turns());
}

#[test]
fn a_broken_transcript_is_healed_and_the_healing_is_told() {
    let broken = to_shared_items(vec![
        output_item("lost", "nobody asked"),
        Item::user("go"),
        Item::call("a", "t", "{}"),
        Item::call("b", "t", "{}"),
        Item::call("a", "t", "{}"),
        output_item("a", "A"),
        Item::assistant("on"),
        output_item("b", "late"),
        Item::call("c", "t", "{}"),
        Item::user("still there?"),
        output_item("a", "again"),
    ]);
    let healed = repair_transcript(broken);
    assert_eq!(
        item_lines(&healed.items),
        [
            "user: go",
            "call a t {}",
            "call b t {}",
            "output a A",
            "output b late",
            "assistant: on",
            "call c t {}",
            "output c The output of this call was not kept.",
            "user: still there?",
        ]
    );
    assert_eq!(healed.answered_calls, ["c"]);
    assert_eq!(healed.orphaned_outputs, ["lost"]);
    assert_eq!(healed.duplicates, ["a", "a"]);
    assert_eq!(healed.moved_outputs, ["b"]);
    assert!(repair_transcript(healed.items).was_valid());
    assert!(repair_transcript(two_turns()).was_valid());
}

/// A response that speaks after its call, as some providers write it, and a call that never got its output.
fn odd_turns() -> Vec<Arc<Item>> {
    to_shared_items(vec![
        Item::user("first"),
        Item::call("a", "t", "{}"),
        Item::assistant("I look."),
        output_item("a", "A"),
        Item::call("lost", "t", "{}"),
        Item::user("second"),
        Item::assistant("two"),
    ])
}

#[tokio::test]
async fn a_limit_gives_a_valid_history_wherever_it_cuts() {
    let session = Session::in_memory("s");
    session.append(odd_turns()).await.expect("memory can be written");
    for limit in 0..=8 {
        let items = session.clone().history_limit(limit).items().await.expect("memory can be read");
        assert!(items.len() <= limit);
        assert_eq!(keep_pairs(items).describe_repairs(), "", "limit {limit}");
    }
    let removed = session.load_history().await.expect("memory can be read").broken_pairs;
    assert_eq!(removed, "call `lost` without its output");
}

#[tokio::test]
async fn compaction_leaves_a_valid_history_wherever_it_cuts() {
    for keep in 0..=4 {
        let session = Session::in_memory("s");
        session.append(odd_turns()).await.expect("memory can be written");
        let policy = CompactionPolicy::above_items(3, keep);
        let result = session.compact(&policy).await.expect("memory can be written");
        assert!(matches!(result, CompactionResult::Summarised { .. }), "keep {keep}: {result:?}");
        let stored = session.store.load_session(&session.id).await.expect("memory can be read").items;
        assert_eq!(keep_pairs(stored).describe_repairs(), "", "keep {keep}");
    }
}
