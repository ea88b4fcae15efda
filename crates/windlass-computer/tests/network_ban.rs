//! A browser in a process whose network is banned except for this machine. The browser is a real Chromium.

#![expect(clippy::expect_used, reason = "a failed precondition fails the test")]

mod support;

use support::{TestPageServer, start_browser};
use windlass_computer::{BrowserOptions, Computer};
use windlass_net::{NetworkBan, ban_network};

#[tokio::test]
async fn a_browser_under_a_ban_reaches_only_this_machine() {
    ban_network(NetworkBan::ExceptLoopback);
    let Some(browser) = start_browser(BrowserOptions::default()).await else { return };
    let pages = TestPageServer::serve().await;
    browser.navigate(&pages.url("form.html")).await.expect("this machine is excepted");
    for url in ["http://live.example/", "https://1.1.1.1/"] {
        let refused = browser.navigate(url).await.expect_err("it is banned").to_string();
        assert!(refused.contains("live requests are banned in this process"), "{refused}");
    }
    browser.close().await;
}
