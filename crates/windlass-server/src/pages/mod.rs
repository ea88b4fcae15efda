//! The inspector: pages that the server renders, with a small script that keeps them current.
//!
//! Everything on a page that comes from a model, a tool or a file is escaped twice: hidden characters become visible
//! ([`windlass_text`]), and then markup becomes text.

mod costs;
mod forms;
mod inbox;
mod lists;
mod live;
mod markup;
mod run;
mod run_rows;
mod timeline;

use std::collections::{BTreeMap, VecDeque};
use std::path::PathBuf;
use std::sync::{Arc, Mutex};

use axum::Router;
use axum::extract::{DefaultBodyLimit, State};
use axum::http::{HeaderMap, HeaderValue, StatusCode, header};
use axum::response::{Html, IntoResponse, Redirect, Response};
use axum::routing::{get, post};
use maud::Markup;
use serde::Deserialize;
use windlass::artefact::fetch_media;
use windlass::core::id::{AgentName, RunId};
use windlass::core::inspect::diff_runs;
use windlass::core::journal::{JournalRecord, read_text_media};
use windlass::fleet::RunQueue;
use windlass::run::PausedRun;
use windlass::store::{Store, load_paused};
use windlass_text::SafeText;

use self::markup::PageFrame;
use self::run::{RunView, run_page};
use crate::access::{AccessRole, PersonIdentity, RequestEvidence};
use crate::api::{
    ApiError, RequestPerson, RunListQuery, TextBody, UrlPath, UrlQuery, find_viewable_run, list_runs_page,
    queue_filter, run_blocking,
};
use crate::lock_unpoisoned;
use crate::login_sessions::LOGIN_DURATION;
use crate::request_guard::{LOGIN_COOKIE, login_cookie};
use crate::server::ServerState;

/// Number of uploaded runs that are kept.
const MAX_UPLOADS: usize = 16;
/// Size of the texts of uploaded runs that are kept.
const MAX_UPLOAD_BYTES: usize = 64 << 20;
/// Maximum size of the form with a token, which anybody may send.
const MAX_LOGIN_BYTES: usize = 4096;

/// Runs that were uploaded to be looked at. They are in memory, the newest ones only, and for their person alone.
#[derive(Default)]
pub(crate) struct UploadShelf {
    runs: Mutex<VecDeque<UploadedRun>>,
}

impl UploadShelf {
    /// Returns a picture of a run that this person has uploaded. Its address names its content, so that it is the same
    /// picture as in the store.
    fn find_media(&self, person: &str, url: &str) -> Option<String> {
        let runs = lock_unpoisoned(&self.runs);
        let mut own = runs.iter().filter(|run| run.person == person);
        own.find_map(|run| run.media.get(url).cloned())
    }
}

#[derive(Clone)]
struct UploadedRun {
    key: String,
    person: String,
    /// Size of its text.
    size_in_bytes: usize,
    records: Arc<Vec<JournalRecord>>,
    /// The pictures in the text by their addresses.
    media: Arc<BTreeMap<String, String>>,
}

/// Makes the router of the pages.
pub(crate) fn page_router() -> Router<Arc<ServerState>> {
    Router::new()
        .route("/", get(show_inbox))
        .route("/runs", get(show_runs))
        .route("/runs/{run}", get(show_run))
        .route("/diff", get(show_diff))
        .route("/costs", get(show_costs))
        .route("/fleet", get(show_fleet))
        .route("/look", get(show_look).post(upload))
        .route("/look/{key}", get(show_upload))
        .route("/live", get(show_live_sessions))
        .route("/live/{session}", get(show_live_session))
        .route("/media", get(show_media))
        .route("/login", get(show_login).post(log_in).layer(DefaultBodyLimit::max(MAX_LOGIN_BYTES)))
        .route("/logout", post(log_out))
        .route(
            "/assets/inspector.css",
            get(|| asset("text/css; charset=utf-8", include_str!("../../assets/inspector.css"))),
        )
        .route(
            "/assets/inspector.js",
            get(|| asset("text/javascript; charset=utf-8", include_str!("../../assets/inspector.js"))),
        )
        .route("/assets/icon.svg", get(|| asset("image/svg+xml", include_str!("../../assets/icon.svg"))))
}

async fn asset(kind: &'static str, body: &'static str) -> impl IntoResponse {
    ([(header::CONTENT_TYPE, kind), (header::CACHE_CONTROL, "no-cache")], body)
}

/// A page that cannot be shown.
struct PageError {
    person: Option<String>,
    error: ApiError,
}

impl From<ApiError> for PageError {
    fn from(error: ApiError) -> Self {
        Self { person: None, error }
    }
}

impl IntoResponse for PageError {
    fn into_response(self) -> Response {
        let person = self.person.unwrap_or_default();
        let frame = PageFrame { title: "Not shown", current: "", person: &person, waiting: 0 };
        let content = maud::html! { div.head { h1 { "This cannot be shown" } } p.problem role="alert" { (self.error.message) } p { a href="/runs" { "All runs" } } };
        (self.error.status, Html(frame.render(&content).into_string())).into_response()
    }
}

/// Puts the content of a page into the frame, with the number of calls that wait.
async fn framed(
    state: &ServerState,
    person: &PersonIdentity,
    title: &str,
    current: &str,
    content: &Markup,
) -> Result<Html<String>, PageError> {
    let (waiting, _) = state.inbox_page(person, 0, 0).await?;
    let frame = PageFrame { title, current, person: &person.name, waiting };
    Ok(Html(frame.render(content).into_string()))
}

#[derive(Deserialize)]
struct InboxPageQuery {
    skip: Option<usize>,
}

async fn show_inbox(
    State(state): State<Arc<ServerState>>,
    RequestPerson(person): RequestPerson,
    UrlQuery(asked): UrlQuery<InboxPageQuery>,
) -> Result<Html<String>, PageError> {
    let skip = asked.skip.unwrap_or(0);
    let (total, items) = state.inbox_page(&person, skip, inbox::PAGE_CALLS).await?;
    framed(&state, &person, "Inbox", "/", &inbox::inbox(total, skip, &items, &person.name)).await
}

async fn show_runs(
    State(state): State<Arc<ServerState>>,
    RequestPerson(person): RequestPerson,
    UrlQuery(mut asked): UrlQuery<RunListQuery>,
) -> Result<Html<String>, PageError> {
    asked.search = asked.search.filter(|text| !text.is_empty());
    let page = list_runs_page(&state, &person, &asked).await?;
    let listed = page.runs.iter().map(|run| (RunId::from(run.run.as_str()), run.records));
    let usages = state.spending.usage_of_runs(&state.queue, &state.prices, listed).await;
    let usages = usages.map_err(ApiError::from)?;
    let live_page = state.live_journals.as_ref().map(|_| "/live");
    let content =
        lists::runs(&asked, &page, &usages, &state.catalogue, &person, live_page, &state.prices.currency);
    framed(&state, &person, "Runs", "/runs", &content).await
}

#[derive(Deserialize)]
struct RunPageQuery {
    at: Option<u64>,
    page: Option<usize>,
}

async fn show_run(
    State(state): State<Arc<ServerState>>,
    RequestPerson(person): RequestPerson,
    UrlPath(run): UrlPath<String>,
    UrlQuery(asked): UrlQuery<RunPageQuery>,
) -> Result<Html<String>, PageError> {
    let (id, _) = find_viewable_run(&state, &person, &run, AccessRole::View).await?;
    let base = format!("/runs/{}", markup::query_text(&run));
    let paused = match load_paused(&*state.queue, &id).await {
        Ok(paused) => paused,
        Err(error) => {
            let error = ApiError::from(error);
            if error.status != StatusCode::NOT_FOUND {
                return Err(error.into());
            }
            let queued = state.queue.load_queued_run(&id).await.map_err(ApiError::from)?;
            let obstacle = queued.and_then(|queued| state.catalogue.find_obstacle(&queued));
            let content = run::queued_run(&run, obstacle.as_deref());
            return framed(&state, &person, &run, "/runs", &content).await;
        }
    };
    let count = paused.record().record_count();
    let is_now = asked.at.is_none_or(|at| at.saturating_add(1) >= count);
    let pending = if is_now { state.pending_items(&id).await? } else { Vec::new() };
    let driver = state.queue.load_lease(&id).await.map_err(ApiError::from)?.map(|lease| lease.owner);
    let queued = state.queue.load_queued_run(&id).await.map_err(ApiError::from)?;
    let obstacle = queued.and_then(|queued| state.catalogue.find_obstacle(&queued));
    let (shown, name, prices) = (run.clone(), person.name.clone(), state.prices.clone());
    // A long journal is read, replayed and rendered without holding up other requests.
    let content = run_blocking(move || {
        let records = paused.record().read_journal().map_err(ApiError::from)?;
        let view = RunView {
            id: &shown,
            base,
            records,
            at: asked.at,
            page: asked.page,
            pending: &pending,
            person: &name,
            prices: &prices,
            is_stored: true,
            driver,
            obstacle,
        };
        Ok(run_page(&view))
    })
    .await?;
    framed(&state, &person, &run, "/runs", &content).await
}

#[derive(Deserialize)]
struct DiffPageQuery {
    first: Option<String>,
    second: Option<String>,
}

async fn show_diff(
    State(state): State<Arc<ServerState>>,
    RequestPerson(person): RequestPerson,
    UrlQuery(asked): UrlQuery<DiffPageQuery>,
) -> Result<Html<String>, PageError> {
    let (first, second) = (asked.first.unwrap_or_default(), asked.second.unwrap_or_default());
    let mut found = None;
    let mut problem = None;
    if !first.is_empty() && !second.is_empty() {
        match compare(&state, &person, &first, &second).await {
            Ok(diff) => found = Some(diff),
            Err(error) => problem = Some(error.message),
        }
    }
    let content = lists::diff(&first, &second, found.as_ref(), problem.as_deref());
    framed(&state, &person, "Compare", "", &content).await
}

async fn compare(
    state: &ServerState,
    person: &PersonIdentity,
    first: &str,
    second: &str,
) -> Result<windlass::core::inspect::RunDiff, ApiError> {
    let (first, _) = find_viewable_run(state, person, first, AccessRole::View).await?;
    let (second, _) = find_viewable_run(state, person, second, AccessRole::View).await?;
    let (first, second) =
        (load_paused(&*state.queue, &first).await?, load_paused(&*state.queue, &second).await?);
    run_blocking(move || Ok(diff_runs(first.record().read_journal()?, second.record().read_journal()?))).await
}

#[derive(Deserialize)]
struct CostPageQuery {
    days: Option<u32>,
}

async fn show_costs(
    State(state): State<Arc<ServerState>>,
    RequestPerson(person): RequestPerson,
    UrlQuery(asked): UrlQuery<CostPageQuery>,
) -> Result<Html<String>, PageError> {
    let days = asked.days.unwrap_or(30);
    let report = state.cost_report(&person, Some(days)).await?;
    framed(&state, &person, "Costs", "/costs", &costs::costs(&report, days, &state.prices)).await
}

#[derive(Deserialize)]
struct FleetPageQuery {
    /// Run after which the page of the queue begins.
    after: Option<String>,
    /// State of the runs in the queue.
    state: Option<String>,
}

async fn show_fleet(
    State(state): State<Arc<ServerState>>,
    RequestPerson(person): RequestPerson,
    UrlQuery(asked): UrlQuery<FleetPageQuery>,
) -> Result<Html<String>, PageError> {
    let after = asked.after.as_deref().map(RunId::from);
    let filter = queue_filter(asked.state.as_deref())?;
    let fleet = state.fleet_page(&person, filter, after, lists::PAGE_QUEUED).await?;
    let content = lists::fleet(&fleet, filter, &state.catalogue, &person);
    framed(&state, &person, "Fleet", "/fleet", &content).await
}

async fn show_look(
    State(state): State<Arc<ServerState>>,
    RequestPerson(person): RequestPerson,
) -> Result<Html<String>, PageError> {
    framed(&state, &person, "Open a file", "/look", &lists::look(None)).await
}

/// Reads an uploaded run and returns the address at which it is shown.
async fn upload(
    State(state): State<Arc<ServerState>>,
    RequestPerson(person): RequestPerson,
    TextBody(text): TextBody,
) -> Result<String, ApiError> {
    let refused = |error: &dyn std::fmt::Display| {
        let message = SafeText::from_words(&error.to_string()).to_string();
        ApiError::new(StatusCode::UNPROCESSABLE_ENTITY, "unreadable_run", message)
    };
    let size_in_bytes = text.len();
    let (paused, media) = run_blocking(move || {
        let paused = PausedRun::from_text(&text).map_err(|error| refused(&error))?;
        Ok((paused, read_text_media(&text)))
    })
    .await?;
    let records = paused.record().read_journal()?.to_vec();
    let key = uuid::Uuid::now_v7().simple().to_string();
    let mut runs = lock_unpoisoned(&state.uploads.runs);
    runs.push_front(UploadedRun {
        key: key.clone(),
        person: person.name,
        size_in_bytes,
        records: Arc::new(records),
        media: Arc::new(media),
    });
    runs.truncate(MAX_UPLOADS);
    let size = |runs: &VecDeque<UploadedRun>| runs.iter().map(|run| run.size_in_bytes).sum::<usize>();
    while runs.len() > 1 && size(&runs) > MAX_UPLOAD_BYTES {
        runs.pop_back();
    }
    Ok(format!("/look/{key}"))
}

async fn show_upload(
    State(state): State<Arc<ServerState>>,
    RequestPerson(person): RequestPerson,
    UrlPath(key): UrlPath<String>,
    UrlQuery(asked): UrlQuery<RunPageQuery>,
) -> Result<Html<String>, PageError> {
    let found = lock_unpoisoned(&state.uploads.runs)
        .iter()
        .find(|run| run.key == key && run.person == person.name)
        .cloned();
    let Some(found) = found else {
        return framed(
            &state,
            &person,
            "Open a file",
            "/look",
            &lists::look(Some("This file is not here any more: open it again.")),
        )
        .await;
    };
    let id = match found.records.first().map(|record| &record.entry) {
        Some(windlass::core::journal::JournalEntry::RunStarted(started)) => started.run.as_str().to_owned(),
        _ => key.clone(),
    };
    let (shown, name, prices) = (id.clone(), person.name.clone(), state.prices.clone());
    let content = run_blocking(move || {
        let view = RunView {
            id: &shown,
            base: format!("/look/{key}"),
            records: &found.records,
            at: asked.at,
            page: asked.page,
            pending: &[],
            person: &name,
            prices: &prices,
            is_stored: false,
            driver: None,
            obstacle: None,
        };
        Ok(run_page(&view))
    })
    .await?;
    framed(&state, &person, &id, "/look", &content).await
}

/// Returns the folder with the journals of live sessions.
fn live_folder(state: &ServerState) -> Result<PathBuf, ApiError> {
    state.live_journals.clone().ok_or_else(|| {
        ApiError::new(StatusCode::NOT_FOUND, "no_live_sessions", "this server is given no live sessions")
    })
}

async fn show_live_sessions(
    State(state): State<Arc<ServerState>>,
    RequestPerson(person): RequestPerson,
) -> Result<Html<String>, PageError> {
    let folder = live_folder(&state)?;
    let viewer = person.clone();
    let may_view = move |agent: &AgentName| viewer.may(AccessRole::View, agent);
    let content = run_blocking(move || Ok(live::sessions(&live::list_sessions(&folder, may_view)))).await?;
    framed(&state, &person, "Live sessions", "/runs", &content).await
}

async fn show_live_session(
    State(state): State<Arc<ServerState>>,
    RequestPerson(person): RequestPerson,
    UrlPath(name): UrlPath<String>,
) -> Result<Html<String>, PageError> {
    let folder = live_folder(&state)?;
    let asked = name.clone();
    let found = run_blocking(move || Ok(live::load_session(&folder, &asked))).await?;
    let may_view = |session: &live::LiveSession| {
        session.agent.as_ref().is_some_and(|agent| person.may(AccessRole::View, agent))
    };
    let found = found.filter(may_view).ok_or_else(|| {
        ApiError::new(StatusCode::NOT_FOUND, "session_not_found", "there is no such live session")
    })?;
    framed(&state, &person, &name, "/runs", &live::session(&name, &found)).await
}

#[derive(Deserialize)]
struct MediaQuery {
    url: String,
}

/// Returns a picture that an item of a run refers to.
async fn show_media(
    State(state): State<Arc<ServerState>>,
    RequestPerson(person): RequestPerson,
    UrlQuery(asked): UrlQuery<MediaQuery>,
) -> Result<Response, ApiError> {
    let run = asked.url.strip_prefix("artefact:").and_then(|rest| rest.rsplit_once('/'));
    let Some((run, _)) = run else { return Err(ApiError::invalid("not a picture of a run")) };
    let text = match state.uploads.find_media(&person.name, &asked.url) {
        Some(text) => text,
        None => {
            find_viewable_run(&state, &person, run, AccessRole::View).await?;
            let stored = fetch_media(&*state.queue, &asked.url).await?;
            stored.ok_or_else(|| ApiError::run_not_found(run))?
        }
    };
    let bytes = decode_base64(&text).ok_or_else(|| ApiError::invalid("not a picture of a run"))?;
    let kind = match bytes.as_slice() {
        [0x89, b'P', b'N', b'G', ..] => "image/png",
        [0xff, 0xd8, 0xff, ..] => "image/jpeg",
        [b'R', b'I', b'F', b'F', _, _, _, _, b'W', b'E', b'B', b'P', ..] => "image/webp",
        _ => return Err(ApiError::invalid("not a picture")),
    };
    Ok(([(header::CONTENT_TYPE, kind)], bytes).into_response())
}

fn decode_base64(text: &str) -> Option<Vec<u8>> {
    let mut bytes = Vec::with_capacity(text.len() / 4 * 3);
    let (mut bits, mut count) = (0_u32, 0);
    for letter in text.bytes().filter(|letter| !b"=\r\n".contains(letter)) {
        let value = match letter {
            b'A'..=b'Z' => letter - b'A',
            b'a'..=b'z' => letter - b'a' + 26,
            b'0'..=b'9' => letter - b'0' + 52,
            b'+' | b'-' => 62,
            b'/' | b'_' => 63,
            _ => return None,
        };
        bits = bits << 6 | u32::from(value);
        count += 6;
        if count >= 8 {
            count -= 8;
            bytes.push((bits >> count & 0xff) as u8);
        }
    }
    Some(bytes)
}

async fn show_login() -> Html<String> {
    login_page(false)
}

fn login_page(is_wrong: bool) -> Html<String> {
    let frame = PageFrame { title: "Log in", current: "", person: "", waiting: 0 };
    Html(frame.render(&lists::login(is_wrong)).into_string())
}

/// Logs a person in whose token is known: sets the cookie, and gives the page its key.
async fn log_in(
    State(state): State<Arc<ServerState>>,
    headers: HeaderMap,
    TextBody(form): TextBody,
) -> Result<Response, ApiError> {
    let token = form.split('&').find_map(|field| field.strip_prefix("token=")).unwrap_or_default();
    let is_plain = !token.is_empty()
        && token.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'-' || byte == b'_');
    let known = state.access.identify(RequestEvidence { token: Some(token), proxy_name: None });
    let Some(person) = known.filter(|_| is_plain) else {
        return Ok((StatusCode::UNAUTHORIZED, login_page(true)).into_response());
    };
    tracing::info!(person = person.name, "a person has logged in");
    let secrets = state.logins.begin(person).map_err(|error| {
        tracing::error!(%error, "there is no randomness");
        ApiError::new(StatusCode::SERVICE_UNAVAILABLE, "no_randomness", "the login has failed; try again")
    })?;
    let frame = PageFrame { title: "Logged in", current: "", person: "", waiting: 0 };
    let page = Html(frame.render(&lists::logged_in(&secrets.page_key)).into_string());
    let age = LOGIN_DURATION.as_secs();
    let attributes = format!("{}; Max-Age={age}", cookie_attributes(&state, &headers));
    let cookie = format!("{LOGIN_COOKIE}={}; {attributes}", secrets.cookie);
    Ok(with_cookie(page.into_response(), &cookie))
}

async fn log_out(State(state): State<Arc<ServerState>>, headers: HeaderMap) -> Response {
    if let Some(cookie) = login_cookie(&headers) {
        state.logins.end(cookie);
    }
    let cookie = format!("{LOGIN_COOKIE}=; {}; Max-Age=0", cookie_attributes(&state, &headers));
    with_cookie(Redirect::to("/login").into_response(), &cookie)
}

/// Returns the attributes of the cookie. It is sent over TLS alone where the browser uses TLS, or where others share the
/// network.
fn cookie_attributes(state: &ServerState, headers: &HeaderMap) -> &'static str {
    let origin = headers.get(header::ORIGIN).and_then(|value| value.to_str().ok());
    if state.is_on_loopback() && !origin.is_some_and(|origin| origin.starts_with("https://")) {
        "HttpOnly; SameSite=Strict; Path=/"
    } else {
        "Secure; HttpOnly; SameSite=Strict; Path=/"
    }
}

fn with_cookie(mut response: Response, cookie: &str) -> Response {
    if let Ok(value) = HeaderValue::from_str(cookie) {
        response.headers_mut().insert(header::SET_COOKIE, value);
    }
    response
}
