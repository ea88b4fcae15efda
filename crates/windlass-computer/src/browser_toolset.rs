//! Parsing of the calls of Anthropic's toolsets. The members of the computer toolset are one action each; those of the
//! browser toolset add tabs, addresses and elements by reference.

use serde_json::Value;

use crate::action::{ComputerAction, MouseButton, PageContent, PageReading};
use crate::action_parser::{ActionFields, parse_anthropic_action};

/// Parses the call of a toolset member. A call that names a tab switches to it first.
pub(crate) fn parse_member_call(
    member: &str,
    fields: &ActionFields<'_>,
) -> Result<Vec<ComputerAction>, String> {
    let mut actions = Vec::new();
    if !matches!(member, "switch_tab" | "close_tab")
        && let Some(tab) = optional_tab(fields)?
    {
        actions.push(ComputerAction::SwitchTab { tab });
    }
    let reference = target_reference(fields)?;
    let click = |element: String, button, times| {
        Ok::<_, String>(ComputerAction::ClickElement {
            element,
            button,
            times,
            held_keys: fields.modifiers()?,
        })
    };
    match (member, reference) {
        ("left_click", Some(element)) => actions.push(click(element, MouseButton::Left, 1)?),
        ("right_click", Some(element)) => actions.push(click(element, MouseButton::Right, 1)?),
        ("middle_click", Some(element)) => actions.push(click(element, MouseButton::Middle, 1)?),
        ("double_click", Some(element)) => actions.push(click(element, MouseButton::Left, 2)?),
        ("triple_click", Some(element)) => actions.push(click(element, MouseButton::Left, 3)?),
        ("hover", Some(element)) => actions.push(ComputerAction::HoverElement { element }),
        ("scroll_to", Some(element)) => actions.push(ComputerAction::ScrollToElement { element }),
        ("form_input", Some(field)) => {
            let value = match fields.0.get("value") {
                Some(Value::String(text)) => text.clone(),
                Some(value @ (Value::Bool(_) | Value::Number(_))) => value.to_string(),
                _ => return Err("needs `value`: a text, a number, true or false".to_owned()),
            };
            actions.push(ComputerAction::FillField { field, value });
        }
        ("file_upload", Some(field)) => {
            let mut files = Vec::new();
            for name in ["paths", "document_ids"] {
                if fields.0.get(name).is_some_and(|list| !list.is_null()) {
                    files.extend(fields.text_list(name)?);
                }
            }
            actions.push(ComputerAction::UploadFiles { field: Some(field), files });
        }
        ("scroll_to" | "form_input" | "file_upload", None) => {
            return Err("needs `target`, a reference of `read_page` or `find`".to_owned());
        }
        ("hover", None) => actions.push(parse_anthropic_action("mouse_move", fields)?),
        ("left_mouse_down" | "left_mouse_up", None) => {
            if fields.0.contains_key("target") {
                actions.push(parse_anthropic_action("mouse_move", fields)?);
            }
            actions.push(parse_anthropic_action(member, fields)?);
        }
        ("key", None) => {
            let keys = fields.text("text")?;
            let is_sequence = keys.split_whitespace().nth(1).is_some();
            for keys in keys.split_whitespace().filter(|_| is_sequence) {
                let mut one = fields.0.clone();
                one.insert("text".to_owned(), keys.into());
                actions.push(parse_anthropic_action("key", &ActionFields(&one))?);
            }
            if !is_sequence {
                actions.push(parse_anthropic_action("key", fields)?);
            }
        }
        ("navigate", None) => actions.push(match fields.text("url")? {
            "back" => ComputerAction::Back,
            "forward" => ComputerAction::Forward,
            "reload" => ComputerAction::Reload,
            url => ComputerAction::Navigate { url: with_protocol(url) },
        }),
        ("list_tabs", None) => actions.push(ComputerAction::ListTabs),
        ("new_tab", None) => actions.extend([ComputerAction::NewTab, ComputerAction::ListTabs]),
        ("switch_tab" | "close_tab", None) => {
            let tab = optional_tab(fields)?.ok_or("needs `tab_id`")?;
            actions.push(match member {
                "switch_tab" => ComputerAction::SwitchTab { tab },
                _ => ComputerAction::CloseTab { tab },
            });
        }
        ("read_page", None) => {
            let content = match fields.0.get("filter").and_then(Value::as_str) {
                Some("interactive") => PageContent::Interactive,
                _ => PageContent::All,
            };
            let root = fields.0.get("ref").and_then(Value::as_str).map(str::to_owned);
            let max_depth = fields.integer("depth")?.and_then(|depth| usize::try_from(depth).ok());
            actions.push(ComputerAction::ReadPage { reading: PageReading { content, root, max_depth } });
        }
        ("get_page_text", None) => actions.push(ComputerAction::ReadPage {
            reading: PageReading { content: PageContent::Text, ..PageReading::default() },
        }),
        ("find", None) => {
            actions.push(ComputerAction::FindElements { query: fields.text("query")?.to_owned() });
        }
        (member, None) => actions.push(parse_anthropic_action(member, fields)?),
        (_, Some(_)) => return Err("needs a coordinate as its `target`".to_owned()),
    }
    Ok(actions)
}

/// Returns the reference of the target element; `None` if the target is a coordinate or absent.
fn target_reference(fields: &ActionFields<'_>) -> Result<Option<String>, String> {
    match fields.0.get("target").map(|target| (&target["type"], &target["ref"])) {
        Some((Value::String(kind), Value::String(reference))) if kind == "ref" => Ok(Some(reference.clone())),
        Some((Value::String(kind), _)) if kind == "ref" => Err("needs `ref` in its `target`".to_owned()),
        _ => Ok(None),
    }
}

/// Returns the index that `tab_id` stands for. The list of tabs shows it.
fn optional_tab(fields: &ActionFields<'_>) -> Result<Option<usize>, String> {
    let id = match fields.0.get("tab_id") {
        None | Some(Value::Null) => return Ok(None),
        Some(Value::String(id)) => id.clone(),
        Some(other) => other.to_string(),
    };
    let tab = id.trim_start_matches("tab_").parse();
    tab.map(Some).map_err(|_| format!("has the tab `{id}`, which there is not; list the tabs"))
}

/// Adds the protocol that an address may leave out.
fn with_protocol(url: &str) -> String {
    let has_protocol = url.contains("://") || url.starts_with("about:") || url.starts_with("data:");
    if has_protocol { url.to_owned() } else { format!("https://{url}") }
}
