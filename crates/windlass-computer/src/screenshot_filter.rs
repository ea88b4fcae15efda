//! An input filter that limits how many screenshots are sent to the model. The journal keeps all of them.

use std::future::{Ready, ready};
use std::sync::Arc;

use windlass::core::item::{ContentPart, Item, OutputContent};
use windlass::run::ModelInput;
use windlass::tool::RunContext;

/// Text that replaces a screenshot which is no longer sent to the model.
const DROPPED_SCREENSHOT_TEXT: &str = "[An older screenshot is not shown any more.]";

/// Returns an input filter that sends only the newest `keep` screenshots to the model. Pass it to
/// [`windlass::run::RunBuilder::input_filter`].
pub fn keep_recent_screenshots<C>(
    keep: usize,
) -> impl Fn(RunContext<C>, ModelInput) -> Ready<ModelInput> + Send + Sync + 'static {
    move |_, mut input| {
        drop_old_screenshots(&mut input.items, keep);
        ready(input)
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
