//! Documents that never paint. Chromium stops parsing a document as soon as its script navigates elsewhere; if that
//! navigation comes to nothing (a site that is refused, a download, the address of an application), the document stays
//! without a body: it has no picture, and input waits for its next frame for ever.
//!
//! Such a document gets a moment to go elsewhere by itself, and is then replaced by an empty page.

use std::sync::{Arc, Weak};
use std::time::Duration;

use serde_json::json;
use tokio::time::Instant;

use super::page_controller::{BUSY_QUERY_TIMEOUT, PageController};
use super::state::LoadState;

/// Time for a document without a body to go elsewhere, as pages do that try to open an application first.
const GRACE: Duration = Duration::from_secs(2);

/// Handles the end of a tab's loading. The tab counts as loaded unless its document was never parsed to its end; then
/// it keeps loading until it is known to have a body or is replaced.
pub(super) fn on_stopped_loading(pages: &Arc<PageController>, target: &str) {
    let now = Instant::now();
    let unparsed = pages.with_state(|state| {
        let tab = state.tab_by_target(target)?;
        tab.requested_at = None;
        tab.load = if tab.is_parsed { LoadState::Loaded } else { LoadState::Loading { since: now } };
        (!tab.is_parsed).then(|| tab.session.clone())
    });
    if let Some(session) = unparsed {
        tokio::spawn(replace_without_body(Arc::downgrade(pages), session, target.to_owned(), now));
    }
}

async fn replace_without_body(pages: Weak<PageController>, session: String, target: String, since: Instant) {
    let mut is_without_body = has_no_body(&pages, &session).await;
    if is_without_body {
        tokio::time::sleep(GRACE).await;
        is_without_body = has_no_body(&pages, &session).await;
    }
    let Some(pages) = pages.upgrade() else { return };
    if is_without_body {
        let notice = "The page went elsewhere before it had any content, and did not get there; an empty page is shown.";
        pages.with_state(|state| state.add_notice(notice.to_owned()));
        pages.pipe.send_without_reply(Some(&session), "Page.navigate", json!({ "url": "about:blank" }));
    } else {
        pages.with_state(|state| {
            if let Some(tab) =
                state.tab_by_target(&target).filter(|tab| tab.load == LoadState::Loading { since })
            {
                tab.load = LoadState::Loaded;
            }
        });
    }
    pages.state_version.send_modify(|changes| *changes += 1);
}

/// Returns true if the document of a tab is complete and has no body.
async fn has_no_body(pages: &Weak<PageController>, session: &str) -> bool {
    let Some(pages) = pages.upgrade() else { return false };
    let expression = "document.body === null && document.readyState === 'complete'";
    let params = json!({ "expression": expression, "returnByValue": true });
    let answer = pages.pipe.call_command(Some(session), "Runtime.evaluate", params, BUSY_QUERY_TIMEOUT).await;
    answer.is_ok_and(|answer| answer["result"]["value"] == true)
}
