//! The people who are logged in with a browser.
//!
//! Invariant: nothing that a browser keeps is a token. A browser sends a cookie to every port of its host, so another server
//! of the machine may see it. The cookie alone reads, and changes nothing: every unsafe request also needs the page key,
//! which scripts of this origin keep and send. Both are random, and known only as long as the server lives.

use std::collections::VecDeque;
use std::sync::Mutex;
use std::time::Duration;

use tokio::time::Instant;

use crate::access::{PersonIdentity, TokenDigest};
use crate::lock_unpoisoned;

/// Time for which a person stays logged in.
pub(crate) const LOGIN_DURATION: Duration = Duration::from_secs(30 * 24 * 3600);
/// Number of logins that are kept. The oldest ones end.
const MAX_LOGINS: usize = 1024;
/// Number of random bytes of a secret.
const SECRET_BYTES: usize = 32;

/// The logins of a server.
#[derive(Default)]
pub(crate) struct LoginSessions {
    sessions: Mutex<VecDeque<LoginSession>>,
}

/// A login: digests of its two secrets, and the person.
#[derive(Clone)]
pub(crate) struct LoginSession {
    cookie: TokenDigest,
    page_key: TokenDigest,
    pub(crate) person: PersonIdentity,
    began_at: Instant,
}

/// The two secrets of a new login.
pub(crate) struct LoginSecrets {
    /// Value of the cookie.
    pub(crate) cookie: String,
    /// Key that the script of the pages sends with unsafe requests.
    pub(crate) page_key: String,
}

impl LoginSessions {
    /// Logs a person in.
    ///
    /// # Errors
    ///
    /// Returns an error if the system has no randomness.
    pub(crate) fn begin(&self, person: PersonIdentity) -> Result<LoginSecrets, getrandom::Error> {
        let secrets = LoginSecrets { cookie: random_text()?, page_key: random_text()? };
        let mut sessions = lock_unpoisoned(&self.sessions);
        sessions.retain(|session| session.began_at.elapsed() < LOGIN_DURATION);
        sessions.push_front(LoginSession {
            cookie: TokenDigest::of_token(&secrets.cookie),
            page_key: TokenDigest::of_token(&secrets.page_key),
            person,
            began_at: Instant::now(),
        });
        sessions.truncate(MAX_LOGINS);
        Ok(secrets)
    }

    /// Returns the login of a cookie.
    pub(crate) fn find(&self, cookie: &str) -> Option<LoginSession> {
        let wanted = TokenDigest::of_token(cookie);
        let sessions = lock_unpoisoned(&self.sessions);
        let found = sessions.iter().find(|session| session.cookie == wanted)?;
        (found.began_at.elapsed() < LOGIN_DURATION).then(|| found.clone())
    }

    /// Ends the login of a cookie.
    pub(crate) fn end(&self, cookie: &str) {
        let ended = TokenDigest::of_token(cookie);
        lock_unpoisoned(&self.sessions).retain(|session| session.cookie != ended);
    }
}

impl LoginSession {
    /// Returns true if this is the page key of the login.
    pub(crate) fn has_page_key(&self, key: &str) -> bool {
        self.page_key.matches(key)
    }
}

fn random_text() -> Result<String, getrandom::Error> {
    let mut bytes = [0; SECRET_BYTES];
    getrandom::fill(&mut bytes)?;
    Ok(bytes.iter().map(|byte| format!("{byte:02x}")).collect())
}
