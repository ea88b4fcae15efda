//! An input filter that limits how many screenshots are sent to the model. The journal keeps all of them.

use std::future::{Ready, ready};
use std::sync::Arc;

use windlass::core::item::{ContentPart, Item, OutputContent};
use windlass::run::ModelInput;
use windlass::tool::RunContext;

/// Text that replaces a screenshot which is no longer sent to the model.
const DROPPED_SCREENSHOT_TEXT: &str = "[An older screenshot is not shown any more.]";

/// Returns an input filter that sends only the newest screenshots to the model: `keep` at least, and fewer than
/// twice as many. Older ones are dropped `keep` at a time, so that the beginning of the prompt stays the same for
/// several requests and the provider's prompt cache stays valid. Pass it to
/// [`windlass::run::RunBuilder::input_filter`].
pub fn keep_recent_screenshots<C>(
    keep: usize,
) -> impl Fn(RunContext<C>, ModelInput) -> Ready<ModelInput> + Send + Sync + 'static {
    move |_, mut input| {
        let total = input.items.iter().map(|item| screenshot_count(item)).sum::<usize>();
        let block = keep.max(1);
        let dropped = total.saturating_sub(keep) / block * block;
        drop_old_screenshots(&mut input.items, total - dropped);
        ready(input)
    }
}

/// Returns the number of images in a tool output.
fn screenshot_count(item: &Item) -> usize {
    match item {
        Item::Output(output) => match &output.content {
            OutputContent::Parts(parts) => {
                parts.iter().filter(|part| matches!(part, ContentPart::Image(_))).count()
            }
            OutputContent::Text(_) => 0,
        },
        _ => 0,
    }
}

/// Keeps the newest `keep` images in tool outputs and replaces the others by a line of text. Images that the
/// user sent are kept.
pub fn drop_old_screenshots(items: &mut [Arc<Item>], keep: usize) {
    let mut left = keep;
    for item in items.iter_mut().rev() {
        let Item::Output(output) = &**item else { continue };
        let OutputContent::Parts(parts) = &output.content else { continue };
        let pictures = parts.iter().filter(|part| matches!(part, ContentPart::Image(_))).count();
        if pictures <= left {
            left -= pictures;
            continue;
        }
        let mut output = output.clone();
        if let OutputContent::Parts(parts) = &mut output.content {
            for part in parts.iter_mut().rev().filter(|part| matches!(part, ContentPart::Image(_))) {
                match left.checked_sub(1) {
                    Some(rest) => left = rest,
                    None => *part = ContentPart::text(DROPPED_SCREENSHOT_TEXT),
                }
            }
        }
        *item = Arc::new(Item::Output(output));
    }
}
