//! The tool `fetch_url`: pages of the public web, without access to private networks.
//!
//! **Invariant:** connections are made only to checked IP addresses. The guard of the HTTP client
//! ([`AddressGuard`]) resolves a host name once, requires that all its addresses are public, and connects to one of
//! exactly these; every redirect is checked the same way, and is followed only if its address would need no approval as
//! a first request. DNS rebinding between the check and the connection therefore has no effect. Behind a proxy the same
//! holds, because the proxy is asked for a tunnel to the checked address.

mod connect;
mod html;
mod url;

use std::sync::Arc;
use std::time::Duration;

use schemars::JsonSchema;
use serde::Deserialize;
use windlass::core::provenance::{ContentSource, ContentSources};
use windlass::{
    core::tool::{ToolEffect, ToolKey},
    tool::{Tool, ToolContext},
};
use windlass_net::http::header::{CONTENT_TYPE, LOCATION};
use windlass_net::{AddressGuard, GuardBehindProxy, HttpClient, HttpTransport, is_public_address};

use crate::error::ToolRefusal;
use crate::policy::{BuiltInApprovalPolicy, ToolLimits};
use crate::text::truncate;
use crate::tool_policy::{PolicyVerdict, ToolPolicy};
use connect::{FetchResponse, page_options, send_get};
use url::PageUrl;

/// Maximum number of redirects.
const MAX_REDIRECTS: usize = 5;
/// Maximum number of bytes of an address in a message.
const MAX_SHOWN_URL_BYTES: usize = 2_000;
const FETCH_URL: &str = "fetch_url";

/// What `fetch_url` takes.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct FetchUrl {
    /// The address, which begins with `https://` or `http://`.
    url: String,
}

/// The settings of the tool `fetch_url`.
#[derive(Clone, Debug, Default)]
pub struct WebFetcher {
    approve: BuiltInApprovalPolicy,
    policy: Option<ToolPolicy>,
    private_hosts: Vec<String>,
    limits: ToolLimits,
    http_client: Option<Arc<dyn HttpTransport>>,
    behind_proxy: GuardBehindProxy,
}

impl WebFetcher {
    /// Creates settings that permit public addresses only and require approval for every call.
    pub fn new() -> Self {
        Self::default()
    }

    /// Sets the approval policy; [`BuiltInApprovalPolicy::ExceptFor`] names hosts. Default: always, because a
    /// URL can exfiltrate data.
    #[must_use]
    pub fn approve(mut self, approve: BuiltInApprovalPolicy) -> Self {
        self.approve = approve;
        self
    }

    /// Puts the tool under a policy, which decides about first requests and redirects alike, in place of
    /// [`WebFetcher::approve`].
    #[must_use]
    pub fn policy(mut self, policy: &ToolPolicy) -> Self {
        self.policy = Some(policy.clone());
        self
    }

    /// Permits a host on this machine or in a private network, on any port. The host is compared literally, as
    /// `localhost` or `10.0.0.7`.
    #[must_use]
    pub fn allow_private_host(mut self, host: impl Into<String>) -> Self {
        self.private_hosts.push(host.into().to_ascii_lowercase());
        self
    }

    /// Sets the limits of size and time.
    #[must_use]
    pub fn limits(mut self, limits: ToolLimits) -> Self {
        self.limits = limits;
        self
    }

    /// Sets the HTTP client, for example one with other proxies. It must be able to check addresses
    /// ([`HttpTransport::with_address_guard`]); otherwise every call fails. The default client uses the proxies of the
    /// environment.
    #[must_use]
    pub fn http_client(mut self, client: impl HttpTransport) -> Self {
        self.http_client = Some(Arc::new(client));
        self
    }

    /// Sets the check of addresses behind a proxy. The default, [`GuardBehindProxy::PinnedTunnel`], keeps private
    /// networks closed whatever the proxy can reach; [`GuardBehindProxy::ProxyResolves`] leaves names to the proxy.
    #[must_use]
    pub fn behind_proxy(mut self, behind_proxy: GuardBehindProxy) -> Self {
        self.behind_proxy = behind_proxy;
        self
    }

    /// Returns the client that connects only to public addresses and permitted private hosts.
    fn guarded_client(&self) -> Option<Arc<dyn HttpTransport>> {
        let private_hosts = self.private_hosts.clone();
        let guard = AddressGuard::new(move |host, address| {
            is_public_address(address)
                || private_hosts.iter().any(|private| host.eq_ignore_ascii_case(private))
        });
        let guard = guard.behind_proxy(self.behind_proxy);
        match &self.http_client {
            Some(client) => client.with_address_guard(guard),
            None => HttpClient::new().with_address_guard(guard),
        }
    }

    /// Creates the tool `fetch_url`.
    pub fn tool<C: Send + Sync + 'static>(&self) -> Tool<C> {
        // The guarded client is made once, so that calls share its connections.
        let client = self.guarded_client();
        let (here, rule) = (self.clone(), self.clone());
        let tool = Tool::function(
            FETCH_URL,
            "Gets a page of the web and tells its text. Only public addresses, and only text. A redirect to an \
             address that needs approval is told, and not followed.",
            move |ctx: ToolContext<C>, arguments: FetchUrl| {
                let (here, client) = (here.clone(), client.clone());
                async move {
                    let caller =
                        PageCaller { agent: ctx.agent().as_str(), context_sources: ctx.context_sources() };
                    here.fetch_page(client.as_deref(), caller, &arguments.url).await.map_err(ToolRefusal::into_tool_error)
                }
            },
        )
        .effect(ToolEffect::Pure)
        .content_source(ContentSource::Web)
        .needs_approval_if(move |arguments: &FetchUrl| rule.needs_approval(PageCaller::default(), &arguments.url));
        match &self.policy {
            Some(policy) => policy.apply_to(tool),
            None => tool,
        }
    }

    /// Returns true if a request of this address requires approval, as a first request or as a redirect.
    fn needs_approval(&self, caller: PageCaller<'_>, url: &str) -> bool {
        if let Some(policy) = &self.policy {
            let arguments = serde_json::json!({ "url": url }).to_string();
            let PageCaller { agent, context_sources } = caller;
            match policy.decide_for(agent, &ToolKey::bare(FETCH_URL), &arguments, context_sources).verdict {
                PolicyVerdict::Allow => return false,
                PolicyVerdict::Ask | PolicyVerdict::AskEachTime | PolicyVerdict::Deny => return true,
                PolicyVerdict::Tool => {}
            }
        }
        match &self.approve {
            BuiltInApprovalPolicy::Always => true,
            BuiltInApprovalPolicy::Never => false,
            BuiltInApprovalPolicy::ExceptFor(hosts) => PageUrl::parse(url)
                .map_or(true, |url| !hosts.iter().any(|host| host.eq_ignore_ascii_case(url.host()))),
        }
    }

    async fn fetch_page(
        &self,
        client: Option<&dyn HttpTransport>,
        caller: PageCaller<'_>,
        text: &str,
    ) -> Result<String, ToolRefusal> {
        let time = self.limits.fetch_timeout;
        let refused =
            |url: &str, what: String| ToolRefusal::FetchFailed { url: truncate(url, 200), reason: what };
        let Some(client) = client else {
            let what = "cannot be fetched: the HTTP client of the application cannot check addresses";
            return Err(refused(text, what.to_owned()));
        };
        match tokio::time::timeout(time, self.follow_redirects(client, caller, text)).await {
            Ok(Ok(told)) => Ok(told),
            Ok(Err((url, what))) => Err(refused(&url, what)),
            Err(_) => Err(refused(text, timeout_message(time))),
        }
    }

    async fn follow_redirects(
        &self,
        client: &dyn HttpTransport,
        caller: PageCaller<'_>,
        text: &str,
    ) -> Result<String, (String, String)> {
        let mut url = PageUrl::parse(text).map_err(|what| (text.to_owned(), what))?;
        for _ in 0..=MAX_REDIRECTS {
            let options = page_options(self.limits.fetch_timeout);
            let answer = send_get(client, &url, self.limits.max_page_bytes, options).await;
            let answer = answer.map_err(|what| (url.to_string(), what))?;
            let to = answer.headers.get(LOCATION).and_then(|to| to.to_str().ok());
            match to {
                Some(to) if answer.status.is_redirection() => {
                    let next =
                        url.join(to).map_err(|what| (url.to_string(), format!("leads astray: {what}")))?;
                    if self.needs_approval(caller, &next.to_string()) {
                        let what = format!(
                            "redirects to `{}`, which nobody approved: call fetch_url with that address",
                            truncate(&next.to_string(), MAX_SHOWN_URL_BYTES)
                        );
                        return Err((url.to_string(), what));
                    }
                    url = next;
                }
                Some(_) | None => {
                    return self.describe_page(&url, &answer).map_err(|what| (url.to_string(), what));
                }
            }
        }
        Err((
            url.to_string(),
            format!("was reached after {MAX_REDIRECTS} redirects, and redirects again: give up"),
        ))
    }

    fn describe_page(&self, url: &PageUrl, answer: &FetchResponse) -> Result<String, String> {
        let kind =
            answer.headers.get(CONTENT_TYPE).and_then(|kind| kind.to_str().ok()).unwrap_or("text/plain");
        let kind = kind.split(';').next().unwrap_or_default().trim().to_ascii_lowercase();
        let is_text = kind.starts_with("text/")
            || ["json", "xml", "javascript", "yaml", "toml"].iter().any(|word| kind.ends_with(word));
        if !is_text {
            return Err(format!("is {}, not text", truncate(&kind, 100)));
        }
        let text = String::from_utf8_lossy(&answer.body);
        let text = if kind.contains("html") { html::html_to_text(&text) } else { text.into_owned() };
        let part = if answer.is_complete { "" } else { ", its beginning" };
        Ok(format!(
            "{url}, status {}, {kind}{part}\n\n{}",
            answer.status.as_u16(),
            truncate(&text, self.limits.max_shown_bytes)
        ))
    }
}

/// The caller of a page, as a policy sees it.
#[derive(Clone, Copy, Default)]
struct PageCaller<'a> {
    agent: &'a str,
    context_sources: ContentSources,
}

fn timeout_message(time: Duration) -> String {
    format!("did not answer within {} seconds: try later, or another page", time.as_secs())
}
