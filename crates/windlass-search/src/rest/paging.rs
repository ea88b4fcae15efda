//! Lists in pages, by the parameters `order`, `after`, `before` and `limit`.

use serde_json::{Value, json};

use super::{RestRequest, RestResponse, json as wire};
use crate::{Index, SearchError};

/// A list that a client pages through.
#[derive(Clone, Copy)]
pub(super) struct PagedList<'a> {
    /// Name of the list under which removed items are remembered.
    pub(super) name: &'a str,
    pub(super) default_limit: usize,
    pub(super) max_limit: usize,
}

impl<'a> PagedList<'a> {
    /// Returns a list with the page sizes of the hosted service.
    pub(super) fn new(name: &'a str) -> Self {
        Self { name, default_limit: 20, max_limit: 100 }
    }

    /// Returns one page of the items, which are sorted by creation time and id, newest first.
    ///
    /// The place of a cursor is found by the creation time of its item, so that a client can remove items while it
    /// pages through them.
    pub(super) fn respond(
        self,
        index: &Index,
        request: &RestRequest,
        mut all: Vec<Value>,
    ) -> Result<RestResponse, SearchError> {
        let is_ascending = match query_parameter(request, "order").as_deref() {
            Some("asc") => true,
            None | Some("desc") => false,
            Some(other) => {
                return Err(SearchError::InvalidArgument(format!(
                    "`order` is `asc` or `desc`, not `{other}`"
                )));
            }
        };
        if let Some(id) = query_parameter(request, "after") {
            let (at, is_present) = self.find_cursor(index, &all, "after", &id)?;
            if is_ascending {
                all.truncate(at);
            } else {
                all.drain(..at + usize::from(is_present));
            }
        }
        if let Some(id) = query_parameter(request, "before") {
            let (at, is_present) = self.find_cursor(index, &all, "before", &id)?;
            if is_ascending {
                all.drain(..at + usize::from(is_present));
            } else {
                all.truncate(at);
            }
        }
        if is_ascending {
            all.reverse();
        }
        let limit = match query_parameter(request, "limit") {
            None => self.default_limit,
            Some(limit) => {
                limit.parse().ok().filter(|limit| (1..=self.max_limit).contains(limit)).ok_or_else(|| {
                    SearchError::InvalidArgument(format!("`limit` is 1 to {}, not `{limit}`", self.max_limit))
                })?
            }
        };
        let has_more = all.len() > limit;
        // The items right before a cursor are the last ones of the list.
        if query_parameter(request, "before").is_some() && query_parameter(request, "after").is_none() {
            all.drain(..all.len().saturating_sub(limit));
        } else {
            all.truncate(limit);
        }
        Ok(wire::success_response(&json!({
            "object": "list",
            "first_id": all.first().map(|value| &value["id"]),
            "last_id": all.last().map(|value| &value["id"]),
            "has_more": has_more,
            "data": all,
        })))
    }

    /// Returns the place of a cursor in the list, and true if its item is still there.
    fn find_cursor(
        self,
        index: &Index,
        all: &[Value],
        parameter: &str,
        id: &str,
    ) -> Result<(usize, bool), SearchError> {
        if let Some(at) = all.iter().position(|value| value["id"] == *id) {
            return Ok((at, true));
        }
        let Some(created) = index.removed_item_time(self.name, id)? else {
            return Err(SearchError::InvalidArgument(format!(
                "`{parameter}` names no item of this list: `{id}`"
            )));
        };
        let is_newer = |value: &Value| {
            (value["created_at"].as_i64().unwrap_or(0), value["id"].as_str().unwrap_or_default())
                > (created, id)
        };
        Ok((all.partition_point(is_newer), false))
    }
}

/// Returns a parameter of the query string, decoded.
pub(super) fn query_parameter(request: &RestRequest, name: &str) -> Option<String> {
    let mut pairs = request.query.split('&').filter_map(|pair| pair.split_once('='));
    pairs.find(|(key, _)| decode_percent(key) == name).map(|(_, value)| decode_percent(value))
}

fn decode_percent(text: &str) -> String {
    let mut bytes = Vec::with_capacity(text.len());
    let mut rest = text.as_bytes();
    while let Some((byte, after)) = rest.split_first() {
        rest = after;
        let code = after.get(..2).and_then(|two| std::str::from_utf8(two).ok());
        match (byte, code.and_then(|two| u8::from_str_radix(two, 16).ok())) {
            (b'%', Some(decoded)) => {
                bytes.push(decoded);
                rest = &after[2..];
            }
            (b'+', _) => bytes.push(b' '),
            _ => bytes.push(*byte),
        }
    }
    String::from_utf8_lossy(&bytes).into_owned()
}
