//! The questions of pages: dialogs, files, permissions and passwords.

use serde_json::{Value, json};

use super::frames::{FrameRef, LocatedNode};
use super::page_controller::PageController;
use super::state::{OpenFileChooser, PageDialog, PageQuestion, PermissionRequest, QuestionKind};
use super::{AllowedSites, DialogPolicy, UploadPolicy};
use crate::action::DialogAnswer;
use crate::computer::ComputerError;

impl PageController {
    /// Answers the open dialog or question. The sites are those that a secret in the text is restricted to; the very
    /// dialog or question that is answered is compared with them.
    pub(super) async fn answer_dialog(
        &self,
        answer: DialogAnswer,
        text: Option<&str>,
        sites: &[AllowedSites],
    ) -> Result<(), ComputerError> {
        let (dialog, question) = self.with_state(|state| match state.current_tab() {
            Some(tab) => (tab.dialog.clone(), tab.question.clone()),
            None => (None, None),
        });
        let asking = dialog.as_ref().map(|dialog| &dialog.origin);
        let asking = asking.or_else(|| question.as_ref().map(|question| &question.origin));
        let refusal =
            asking.and_then(|asking| sites.iter().find_map(|sites| sites.origin_refusal_reason(asking)));
        if let Some(why) = refusal {
            return Err(ComputerError::Refused(format!("the secret is not entered here: {why}")));
        }
        let accepts = answer == DialogAnswer::Accept;
        let within = self.options.response_timeout;
        if let Some(dialog) = dialog {
            let mut params = json!({ "accept": accepts });
            if let Some(text) = text {
                params["promptText"] = text.into();
            }
            let session = Some(dialog.session.as_str());
            let answered =
                self.pipe.call_command(session, "Page.handleJavaScriptDialog", params, within).await;
            answered.map_err(|error| self.computer_error(error))?;
            self.with_state(|state| state.current_tab().map(|tab| tab.dialog = None));
            self.record_action();
            return Ok(());
        }
        let Some(question) = question else {
            return Err(ComputerError::Refused("no dialog is open".to_owned()));
        };
        match &question.kind {
            QuestionKind::Authentication { session, request, .. } => {
                let given = match (accepts, text.and_then(|text| text.split_once(':'))) {
                    (true, Some((user, password))) => {
                        json!({ "response": "ProvideCredentials", "username": user, "password": password })
                    }
                    (true, None) => {
                        return Err(ComputerError::Refused("the text must be `user:password`".to_owned()));
                    }
                    (false, _) => json!({ "response": "CancelAuth" }),
                };
                let params = json!({ "requestId": request, "authChallengeResponse": given });
                self.with_state(|state| state.current_tab().map(|tab| tab.question = None));
                let answered =
                    self.pipe.call_command(Some(session), "Fetch.continueWithAuth", params, within).await;
                answered.map_err(|error| self.computer_error(error))?;
            }
            QuestionKind::Permission(request) => {
                self.with_state(|state| state.current_tab().map(|tab| tab.question = None));
                self.settle_permission(request, accepts);
            }
        }
        self.record_action();
        Ok(())
    }

    /// Grants or denies a permission to the origin that asks for it, and lets its page continue.
    fn settle_permission(&self, request: &PermissionRequest, is_granted: bool) {
        let PermissionRequest { session, context, origin, name, id } = request;
        let setting = if is_granted { "granted" } else { "denied" };
        let mut params = json!({ "permission": { "name": name }, "setting": setting, "origin": origin });
        if let Some(context) = self.with_state(|state| state.browser_context.clone()) {
            params["browserContextId"] = context.into();
        }
        self.pipe.send_without_reply(None, "Browser.setPermission", params);
        let answered = format!("globalThis.windlassPermissionAnswered?.({})", Value::from(id.as_str()));
        let params = json!({ "expression": answered, "contextId": context });
        self.pipe.send_without_reply(Some(session), "Runtime.evaluate", params);
    }
}

pub(super) fn on_dialog_opening(pages: &PageController, session: &str, params: &Value) {
    let text = |name: &str| params[name].as_str().unwrap_or_default();
    let (kind, message) = (text("type"), text("message"));
    let answer = match pages.options.dialogs {
        DialogPolicy::Accept => Some(true),
        DialogPolicy::Dismiss => Some(false),
        DialogPolicy::AskModel => None,
    };
    let shown = &message[..message.floor_char_boundary(1000)];
    let shown = match (kind, shown) {
        ("beforeunload", "") => "Leave the page? Changes may not be saved.",
        _ => shown,
    };
    pages.with_state(|state| match answer {
        Some(accept) => {
            let said = if accept { "accepted" } else { "dismissed" };
            state.add_notice(format!("The page showed a dialog ({kind}): \"{shown}\". It was {said}."));
        }
        None => {
            if let Some(tab) = state.tab_of_session(session) {
                tab.dialog = Some(PageDialog {
                    session: session.to_owned(),
                    text: format!(
                        "The page shows a dialog ({kind}): \"{shown}\". It must be answered before anything else can \
                         be done; the picture is from before."
                    ),
                    origin: origin_of(text("url")),
                });
            }
        }
    });
    if let Some(accept) = answer {
        pages.pipe.send_without_reply(
            Some(session),
            "Page.handleJavaScriptDialog",
            json!({ "accept": accept }),
        );
    }
}

/// Returns the origin of an `http` or `https` URL; `null` for others.
fn origin_of(url: &str) -> String {
    match url.split_once("://") {
        Some((scheme @ ("http" | "https"), rest)) => {
            let authority = rest.split(['/', '?', '#']).next().unwrap_or_default();
            format!("{scheme}://{}", authority.rsplit('@').next().unwrap_or_default())
        }
        _ => "null".to_owned(),
    }
}

pub(super) fn on_file_chooser(pages: &PageController, session: &str, params: &Value) {
    let takes_many = params["mode"] == "selectMultiple";
    let Some(backend_node) = params["backendNodeId"].as_i64() else { return };
    let frame = params["frameId"].as_str().unwrap_or_default().to_owned();
    let field = LocatedNode { frame: FrameRef { session: session.to_owned(), frame }, backend_node };
    pages.with_state(|state| {
        let is_current = state.is_of_current_tab(session);
        let Some(tab) = state.tab_of_session(session) else { return };
        tab.file_chooser = Some(OpenFileChooser { field, takes_many });
        let many = if takes_many { "one or more files" } else { "a file" };
        let advice = match pages.options.uploads {
            UploadPolicy::From(_) => "Choose by the operation `upload` of the browser tool.",
            UploadPolicy::Deny => "Files may not be uploaded from here.",
        };
        state.add_notice(match is_current {
            true => format!("The page asks for {many}. {advice}"),
            false => format!("The page of another tab asks for {many}; switch to that tab first. {advice}"),
        });
    });
}

pub(super) fn on_authentication(pages: &PageController, session: &str, params: &Value) {
    let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    let (origin, realm) = (text(&params["authChallenge"]["origin"]), text(&params["authChallenge"]["realm"]));
    let request = text(&params["requestId"]);
    let cancel = |pages: &PageController| {
        pages.pipe.send_without_reply(
            Some(session),
            "Fetch.continueWithAuth",
            json!({ "requestId": request, "authChallengeResponse": { "response": "CancelAuth" } }),
        );
    };
    let is_asked = pages.options.dialogs == DialogPolicy::AskModel
        && pages.with_state(|state| match state.tab_of_session(session) {
            Some(tab) if tab.question.is_none() => {
                let realm = &realm[..realm.floor_char_boundary(200)];
                tab.question = Some(PageQuestion {
                    text: format!(
                        "{origin} asks for a user name and a password (\"{realm}\"). Answer by `answer_dialog` with \
                         `accept` and the text `user:password`, or dismiss it."
                    ),
                    origin: origin.clone(),
                    kind: QuestionKind::Authentication {
                        session: session.to_owned(),
                        request: request.clone(),
                        document_frame: params["frameId"]
                            .as_str()
                            .filter(|_| params["resourceType"] == "Document")
                            .map(str::to_owned),
                    },
                });
                true
            }
            _ => false,
        });
    if !is_asked {
        cancel(pages);
        pages.with_state(|state| {
            state.add_notice(format!("{origin} asked for a user name and a password, and got none."));
        });
    }
}

pub(super) fn on_context_created(pages: &PageController, session: &str, context: &Value) {
    let Some(id) = context["id"].as_i64() else { return };
    // Our isolated worlds ask for nothing.
    if context["auxData"]["isDefault"] == true {
        let origin = context["origin"].as_str().unwrap_or_default();
        // A document of a sandbox has an origin without a host.
        let origin = if origin.ends_with("//") || origin.is_empty() { "null" } else { origin };
        pages.with_state(|state| state.add_context(session, id, origin.to_owned()));
    }
}

/// Returns the name in the DevTools Protocol of a permission that pages are asked about.
fn permission_name(name: &str) -> Option<&'static str> {
    ["geolocation", "notifications", "camera", "microphone", "clipboard-read"]
        .into_iter()
        .find(|known| *known == name)
}

/// Asks about a permission. The page sends its name and an id only: who asks is what the browser knows of the execution
/// context, and a name that the script does not send is not shown to anybody.
pub(super) fn on_permission(pages: &PageController, session: &str, params: &Value) {
    let payload = params["payload"].as_str().unwrap_or_default();
    let Ok(asked) = serde_json::from_str::<Value>(payload) else { return };
    let Some(name) = permission_name(asked["name"].as_str().unwrap_or_default()) else { return };
    let context = params["executionContextId"].as_i64().unwrap_or_default();
    let Some(origin) = pages.with_state(|state| state.context_origin(session, context)) else { return };
    let id = asked["id"].as_str().unwrap_or_default().chars().take(200).collect();
    let request = PermissionRequest { session: session.to_owned(), context, origin, name, id };
    let is_asked = pages.options.dialogs == DialogPolicy::AskModel
        && pages.with_state(|state| match state.tab_of_session(session) {
            Some(tab) if tab.question.is_none() => {
                let origin = request.origin.clone();
                tab.question = Some(PageQuestion {
                    text: format!(
                        "{origin} asks for a permission: {name}. Answer by `answer_dialog`: accept or dismiss."
                    ),
                    origin,
                    kind: QuestionKind::Permission(request.clone()),
                });
                true
            }
            _ => false,
        });
    if !is_asked {
        pages.settle_permission(&request, pages.options.dialogs == DialogPolicy::Accept);
    }
}
