//! How many screenshots the model is shown again and again. The journal keeps them all.

use std::future::{Ready, ready};
use std::sync::Arc;

use windlass::RunContext;
use windlass::core::{Content, Item, OutputContent};
use windlass::run::ModelInput;

/// What stands in place of a picture that is not shown any more.
const DROPPED: &str = "[An older screenshot is not shown any more.]";

/// An input filter that shows the model the newest `keep` screenshots: give it to
/// [`windlass::RunBuilder::input_filter`].
pub fn recent_screenshots<C>(
    keep: usize,
) -> impl Fn(RunContext<C>, ModelInput) -> Ready<ModelInput> + Send + Sync + 'static {
    move |_, mut input| {
        drop_old_screenshots(&mut input.items, keep);
        ready(input)
    }
}

/// Leaves the newest `keep` pictures in the outputs of calls, and puts a line of text in the place of the others.
/// Pictures that a person sent stay.
pub fn drop_old_screenshots(items: &mut [Arc<Item>], keep: usize) {
    let mut left = keep;
    for item in items.iter_mut().rev() {
        let Item::Output(output) = &**item else { continue };
        let OutputContent::Parts(parts) = &output.content else { continue };
        let pictures = parts.iter().filter(|part| matches!(part, Content::Image(_))).count();
        if pictures <= left {
            left -= pictures;
            continue;
        }
        let mut output = output.clone();
        if let OutputContent::Parts(parts) = &mut output.content {
            for part in parts.iter_mut().rev().filter(|part| matches!(part, Content::Image(_))) {
                match left.checked_sub(1) {
                    Some(rest) => left = rest,
                    None => *part = Content::text(DROPPED),
                }
            }
        }
        *item = Arc::new(Item::Output(output));
    }
}
