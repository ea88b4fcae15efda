//! `fetch_url`: pages of the web, and nothing that is nearer.
//!
//! **Invariant:** a connection is made to an address that was looked at, and to no other. A name is resolved once,
//! all of its addresses must be public, and one of these very addresses is connected to; each redirect starts
//! anew. So a name that changes its meaning between the look and the connection changes nothing.

mod address;
mod connect;
mod html;
mod url;

use std::time::Duration;

use hyper::header::{CONTENT_TYPE, LOCATION};
use schemars::JsonSchema;
use serde::Deserialize;
use windlass::{Effect, Tool};

use crate::error::Refusal;
use crate::policy::{Approve, Limits};
use crate::text::cut;
use connect::{Answer, get};
use url::Url;

/// How many redirects are followed.
const REDIRECTS: usize = 5;

/// What `fetch_url` takes.
#[derive(Debug, Deserialize, JsonSchema)]
pub(crate) struct FetchUrl {
    /// The address, which begins with `https://` or `http://`.
    url: String,
}

/// The web, as an agent may use it.
#[derive(Clone, Debug, Default)]
pub struct Web {
    approve: Approve,
    near: Vec<String>,
    limits: Limits,
}

impl Web {
    /// Public addresses, and a person is asked about each.
    pub fn new() -> Self {
        Self::default()
    }

    /// When a person decides. [`Approve::OutsideOf`] names hosts. Without this: always, because an address can
    /// carry what an agent should not tell anybody.
    #[must_use]
    pub fn approve(mut self, approve: Approve) -> Self {
        self.approve = approve;
        self
    }

    /// Lets a host be on this machine or in a private network. It is meant as it is written, `localhost` or
    /// `10.0.0.7`, on any port.
    #[must_use]
    pub fn allow_near(mut self, host: impl Into<String>) -> Self {
        self.near.push(host.into().to_ascii_lowercase());
        self
    }

    /// How much is read and shown, and how long it may take.
    #[must_use]
    pub fn limits(mut self, limits: Limits) -> Self {
        self.limits = limits;
        self
    }

    /// The tool `fetch_url`.
    pub fn tool<C: Send + Sync + 'static>(&self) -> Tool<C> {
        let (here, rule) = (self.clone(), self.clone());
        Tool::function(
            "fetch_url",
            "Gets a page of the web and tells its text. Only public addresses, and only text.",
            move |_, arguments: FetchUrl| {
                let here = here.clone();
                async move { here.fetch(&arguments.url).await.map_err(Refusal::told) }
            },
        )
        .effect(Effect::Pure)
        .approve_if(move |arguments: &FetchUrl| rule.asks(&arguments.url))
    }

    fn asks(&self, url: &str) -> bool {
        match &self.approve {
            Approve::Always => true,
            Approve::Never => false,
            Approve::OutsideOf(hosts) => Url::parse(url)
                .map_or(true, |url| !hosts.iter().any(|host| host.eq_ignore_ascii_case(url.host()))),
        }
    }

    async fn fetch(&self, text: &str) -> Result<String, Refusal> {
        let time = self.limits.fetch_time;
        let refused = |url: &str, what: String| Refusal::Fetch { url: cut(url, 200), what };
        match tokio::time::timeout(time, self.follow(text)).await {
            Ok(Ok(told)) => Ok(told),
            Ok(Err((url, what))) => Err(refused(&url, what)),
            Err(_) => Err(refused(text, late(time))),
        }
    }

    async fn follow(&self, text: &str) -> Result<String, (String, String)> {
        let mut url = Url::parse(text).map_err(|what| (text.to_owned(), what))?;
        for _ in 0..=REDIRECTS {
            let answer = self.get(&url).await.map_err(|what| (url.to_string(), what))?;
            let to = answer.headers.get(LOCATION).and_then(|to| to.to_str().ok());
            match to {
                Some(to) if answer.status.is_redirection() => {
                    url = url.join(to).map_err(|what| (url.to_string(), format!("leads astray: {what}")))?;
                }
                Some(_) | None => return self.tell(&url, &answer).map_err(|what| (url.to_string(), what)),
            }
        }
        Err((
            url.to_string(),
            format!("was reached after {REDIRECTS} redirects, and redirects again: give up"),
        ))
    }

    async fn get(&self, url: &Url) -> Result<Answer, String> {
        let addresses = tokio::net::lookup_host((url.host(), url.port()))
            .await
            .map_err(|_| "has a host that is not known: check how it is written".to_owned())?;
        let addresses: Vec<_> = addresses.collect();
        let is_near = |host: &str| self.near.iter().any(|near| near == host);
        if !is_near(&url.host().to_ascii_lowercase())
            && !addresses.iter().all(|at| address::is_public(at.ip()))
        {
            return Err("is on this machine or in a private network, and these are not open to agents".into());
        }
        get(url, &addresses, self.limits.page_bytes).await
    }

    fn tell(&self, url: &Url, answer: &Answer) -> Result<String, String> {
        let kind =
            answer.headers.get(CONTENT_TYPE).and_then(|kind| kind.to_str().ok()).unwrap_or("text/plain");
        let kind = kind.split(';').next().unwrap_or_default().trim().to_ascii_lowercase();
        let is_text = kind.starts_with("text/")
            || ["json", "xml", "javascript", "yaml", "toml"].iter().any(|word| kind.ends_with(word));
        if !is_text {
            return Err(format!("is {}, not text", cut(&kind, 100)));
        }
        let text = String::from_utf8_lossy(&answer.body);
        let text = if kind.contains("html") { html::text_of(&text) } else { text.into_owned() };
        let part = if answer.is_whole { "" } else { ", its beginning" };
        Ok(format!(
            "{url}, status {}, {kind}{part}\n\n{}",
            answer.status.as_u16(),
            cut(&text, self.limits.shown_bytes)
        ))
    }
}

fn late(time: Duration) -> String {
    format!("did not answer within {} seconds: try later, or another page", time.as_secs())
}
