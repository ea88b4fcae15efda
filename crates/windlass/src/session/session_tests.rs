use windlass_core::Output;

use super::*;
use crate::model::{Reply, ScriptedModel, item_line};

fn output(call: &str, text: &str) -> Item {
    Item::Output(Output { call: call.into(), content: text.into(), status: windlass_core::OutputStatus::Ok })
}

fn shared(items: Vec<Item>) -> Vec<Arc<Item>> {
    items.into_iter().map(Arc::new).collect()
}

fn lines(items: &[Arc<Item>]) -> Vec<String> {
    items.iter().map(|item| item_line(item)).collect()
}

fn two_turns() -> Vec<Arc<Item>> {
    shared(vec![
        Item::user("first"),
        Item::call("a", "t", "{}"),
        Item::call("b", "t", "{}"),
        output("a", "A"),
        output("b", "B"),
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
        let items = session.clone().limit(limit).items().await.expect("memory can be read");
        assert!(items.len() <= limit);
        assert!(heal(items.clone()).was_whole(), "limit {limit}: {:?}", lines(&items));
    }
    let four = session.limit(4).items().await.expect("memory can be read");
    assert_eq!(lines(&four), ["assistant: one", "user: second", "assistant: two"]);
}

#[tokio::test]
async fn rewinding_takes_back_whole_exchanges() {
    let session = Session::in_memory("s");
    session.append(two_turns()).await.expect("memory can be written");
    let taken = session.rewind(1).await.expect("nobody else writes");
    assert_eq!(lines(&taken), ["user: second", "assistant: two"]);
    assert_eq!(session.items().await.expect("memory can be read").len(), 6);
    session.rewind(9).await.expect("nobody else writes");
    assert_eq!(session.items().await.expect("memory can be read"), []);
}

#[tokio::test]
async fn compaction_keeps_the_newest_and_summarises_the_rest() {
    let session = Session::in_memory("s");
    session.append(two_turns()).await.expect("memory can be written");
    let never = Compaction::above_items(100, 2);
    assert_eq!(session.compact(&never).await.expect("memory"), Compacted::NotNeeded);
    let model = ScriptedModel::new([Reply::text("They said hello.")]);
    let by_model = Compaction::above_tokens(10, 3).with_model(model.clone());
    assert_eq!(session.compact(&by_model).await.expect("memory"), Compacted::Summarised { items: 5 });
    assert_eq!(
        lines(&session.items().await.expect("memory can be read")),
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
    let slow = Compaction::above_items(2, 2).with(move |_| {
        let other = other.clone();
        async move {
            other.append(shared(vec![Item::user("third")])).await?;
            Ok("too late".to_owned())
        }
    });
    assert_eq!(session.compact(&slow).await.expect("memory"), Compacted::Overtaken);
    assert_eq!(session.items().await.expect("memory can be read").len(), 9);
}

#[tokio::test]
async fn an_export_reads_back() {
    let session = Session::in_memory("s");
    session.append(two_turns()).await.expect("memory can be written");
    let text = session.export().await.expect("memory can be read");
    assert_eq!(read_export(&text).expect("it was just written"), two_turns());
}

#[test]
fn a_broken_transcript_is_healed_and_the_healing_is_told() {
    let broken = shared(vec![
        output("lost", "nobody asked"),
        Item::user("go"),
        Item::call("a", "t", "{}"),
        Item::call("b", "t", "{}"),
        Item::call("a", "t", "{}"),
        output("a", "A"),
        Item::assistant("on"),
        output("b", "late"),
        Item::call("c", "t", "{}"),
        Item::user("still there?"),
        output("a", "again"),
    ]);
    let healed = heal(broken);
    assert_eq!(
        lines(&healed.items),
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
    assert_eq!(healed.answered, ["c"]);
    assert_eq!(healed.orphaned, ["lost"]);
    assert_eq!(healed.repeated, ["a", "a"]);
    assert_eq!(healed.moved, ["b"]);
    assert!(heal(healed.items).was_whole());
    assert!(heal(two_turns()).was_whole());
}
