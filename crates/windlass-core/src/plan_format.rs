//! The JSON form of a planned call: the name of its disposition is the key of the disposition's fields. An execution that has
//! only an effect is the name of the effect: `"execute": "pure"`.

use std::borrow::Cow;
use std::fmt;

use serde::de::IntoDeserializer;
use serde::de::value::MapAccessDeserializer;
use serde::{Deserialize, Deserializer, Serialize, Serializer, de};

use crate::canonical::Digest;
use crate::id::{AgentName, CallId};
use crate::plan::{BodyKind, CallDisposition, PlannedCall};
use crate::provenance::ContentSources;
use crate::tool::{ApprovalPolicy, ToolEffect, ToolKey};

/// A planned call in its serialised form. It has exactly one of the five dispositions.
#[derive(Serialize, Deserialize)]
struct PlannedCallFields<'a> {
    call: Cow<'a, CallId>,
    key: Cow<'a, ToolKey>,
    digest: Digest,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    execute: Option<ExecuteForm>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    invalid_arguments: Option<ProblemsFields<'a>>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    unknown_tool: Option<MessageFields<'a>>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    handoff: Option<HandoffFields<'a>>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    surplus_handoff: Option<NoFields>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    predecessor: Option<Cow<'a, CallId>>,
}

#[derive(Serialize, Deserialize)]
struct ExecuteFields {
    #[serde(default, skip_serializing_if = "BodyKind::is_function")]
    body: BodyKind,
    effect: ToolEffect,
    #[serde(default, skip_serializing_if = "ApprovalPolicy::is_not_required")]
    approval_policy: ApprovalPolicy,
    #[serde(default, skip_serializing_if = "ContentSources::is_empty")]
    sources: ContentSources,
}

/// The fields of an execution in their serialised form.
struct ExecuteForm(ExecuteFields);

impl Serialize for ExecuteForm {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let ExecuteFields { body, effect, approval_policy, sources } = &self.0;
        match body.is_function() && approval_policy.is_not_required() && sources.is_empty() {
            true => effect.serialize(serializer),
            false => self.0.serialize(serializer),
        }
    }
}

impl<'de> Deserialize<'de> for ExecuteForm {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(ExecuteVisitor)
    }
}

struct ExecuteVisitor;

impl<'de> de::Visitor<'de> for ExecuteVisitor {
    type Value = ExecuteForm;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("an effect, or the fields of an execution")
    }

    fn visit_str<E: de::Error>(self, text: &str) -> Result<ExecuteForm, E> {
        let effect = ToolEffect::deserialize(text.into_deserializer())?;
        let (body, approval_policy, sources) = Default::default();
        Ok(ExecuteForm(ExecuteFields { body, effect, approval_policy, sources }))
    }

    fn visit_map<A: de::MapAccess<'de>>(self, map: A) -> Result<ExecuteForm, A::Error> {
        ExecuteFields::deserialize(MapAccessDeserializer::new(map)).map(ExecuteForm)
    }
}

#[derive(Serialize, Deserialize)]
struct ProblemsFields<'a> {
    problems: Cow<'a, str>,
}

#[derive(Serialize, Deserialize)]
struct MessageFields<'a> {
    message: Cow<'a, str>,
}

#[derive(Serialize, Deserialize)]
struct HandoffFields<'a> {
    to: Cow<'a, AgentName>,
}

#[derive(Serialize, Deserialize)]
struct NoFields {}

impl Serialize for PlannedCall {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut fields = PlannedCallFields {
            call: Cow::Borrowed(&self.call),
            key: Cow::Borrowed(&self.key),
            digest: self.digest,
            execute: None,
            invalid_arguments: None,
            unknown_tool: None,
            handoff: None,
            surplus_handoff: None,
            predecessor: self.predecessor.as_ref().map(Cow::Borrowed),
        };
        match &self.disposition {
            CallDisposition::Execute { body, effect, approval_policy, sources } => {
                fields.execute = Some(ExecuteForm(ExecuteFields {
                    body: *body,
                    effect: *effect,
                    approval_policy: *approval_policy,
                    sources: *sources,
                }));
            }
            CallDisposition::InvalidArguments { problems } => {
                fields.invalid_arguments = Some(ProblemsFields { problems: problems.into() });
            }
            CallDisposition::UnknownTool { message } => {
                fields.unknown_tool = Some(MessageFields { message: message.into() });
            }
            CallDisposition::Handoff { to } => fields.handoff = Some(HandoffFields { to: Cow::Borrowed(to) }),
            CallDisposition::SurplusHandoff => fields.surplus_handoff = Some(NoFields {}),
        }
        fields.serialize(serializer)
    }
}

impl<'de> Deserialize<'de> for PlannedCall {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let fields = PlannedCallFields::deserialize(deserializer)?;
        let execute = fields.execute.map(|ExecuteForm(fields)| {
            let ExecuteFields { body, effect, approval_policy, sources } = fields;
            CallDisposition::Execute { body, effect, approval_policy, sources }
        });
        let invalid = fields
            .invalid_arguments
            .map(|fields| CallDisposition::InvalidArguments { problems: fields.problems.into_owned() });
        let unknown = fields
            .unknown_tool
            .map(|fields| CallDisposition::UnknownTool { message: fields.message.into_owned() });
        let handoff = fields.handoff.map(|fields| CallDisposition::Handoff { to: fields.to.into_owned() });
        let surplus = fields.surplus_handoff.map(|_| CallDisposition::SurplusHandoff);
        let mut found = [execute, invalid, unknown, handoff, surplus].into_iter().flatten();
        // A disposition that is not known grants nothing: the record is refused.
        let (Some(disposition), None) = (found.next(), found.next()) else {
            return Err(de::Error::custom(format!("call `{}` does not have one disposition", fields.call)));
        };
        Ok(Self {
            call: fields.call.into_owned(),
            key: fields.key.into_owned(),
            digest: fields.digest,
            disposition,
            predecessor: fields.predecessor.map(Cow::into_owned),
        })
    }
}
