//! The questions of pages: dialogs, files, permissions and passwords.

use serde_json::{Value, json};

use super::frames::{FrameRef, LocatedNode};
use super::page_controller::PageController;
use super::state::{OpenFileChooser, PageDialog, PageQuestion, QuestionKind};
use super::{DialogPolicy, UploadPolicy};
use crate::action::DialogAnswer;
use crate::computer::ComputerError;

impl PageController {
    pub(super) async fn answer_dialog(
        &self,
        answer: DialogAnswer,
        text: Option<&str>,
    ) -> Result<(), ComputerError> {
        let (dialog, question) = self.with_state(|state| match state.current_tab() {
            Some(tab) => (tab.dialog.clone(), tab.question.clone()),
            None => (None, None),
        });
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
            QuestionKind::Permission { session, name, id } => {
                self.with_state(|state| state.current_tab().map(|tab| tab.question = None));
                self.settle_permission(session, name, id, &question.origin, accepts);
            }
        }
        self.record_action();
        Ok(())
    }

    /// Grants or denies a permission to an origin, and lets the page continue.
    pub(super) fn settle_permission(
        &self,
        session: &str,
        name: &str,
        id: &str,
        origin: &str,
        is_granted: bool,
    ) {
        let setting = if is_granted { "granted" } else { "denied" };
        let name = match name {
            "videoCapture" => "camera",
            "audioCapture" => "microphone",
            other => other,
        };
        let mut params = json!({ "permission": { "name": name }, "setting": setting, "origin": origin });
        if let Some(context) = self.with_state(|state| state.browser_context.clone()) {
            params["browserContextId"] = context.into();
        }
        self.pipe.send_without_reply(None, "Browser.setPermission", params);
        let answered = format!("globalThis.windlassPermissionAnswered?.({})", Value::from(id));
        self.pipe.send_without_reply(Some(session), "Runtime.evaluate", json!({ "expression": answered }));
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

pub(super) fn on_permission(pages: &PageController, session: &str, payload: &str) {
    let Ok(asked) = serde_json::from_str::<Value>(payload) else { return };
    let text = |name: &str| asked[name].as_str().unwrap_or_default().chars().take(200).collect::<String>();
    let (name, id, origin) = (text("name"), text("id"), text("origin"));
    let is_asked = pages.options.dialogs == DialogPolicy::AskModel
        && pages.with_state(|state| match state.tab_of_session(session) {
            Some(tab) if tab.question.is_none() => {
                tab.question = Some(PageQuestion {
                    text: format!(
                        "{origin} asks for a permission: {name}. Answer by `answer_dialog`: accept or dismiss."
                    ),
                    origin: origin.clone(),
                    kind: QuestionKind::Permission {
                        session: session.to_owned(),
                        name: name.clone(),
                        id: id.clone(),
                    },
                });
                true
            }
            _ => false,
        });
    if !is_asked {
        pages.settle_permission(session, &name, &id, &origin, pages.options.dialogs == DialogPolicy::Accept);
    }
}
