//! The guardrails of a tool, around one call of it.

use futures_util::FutureExt;
use windlass_core::{Failure, How, text};

use super::Driver;
use super::call::CallWork;
use super::stop::unless_stopped;
use super::told::Given;
use crate::error::readable;
use crate::event::EventKind;
use crate::guardrail::ToolVerdict;

/// What the model is told where a guardrail could not do its work.
const GUARDRAIL_FAILED: &str = "The call was stopped by a check that could not be completed.";

impl<C: Send + Sync + 'static> Driver<C> {
    /// Runs the input guardrails, where there are any. The first that does not allow says what becomes of the call.
    pub(super) async fn guard_input(&self, work: &CallWork<'_, C>) -> Option<Box<Given>> {
        if work.ready.tool.input_guardrails.is_empty() {
            return None;
        }
        self.guarded_input(work).boxed().await.map(Box::new)
    }

    /// Runs the input guardrails in order.
    async fn guarded_input(&self, work: &CallWork<'_, C>) -> Option<Given> {
        for guardrail in &work.ready.tool.input_guardrails {
            let Some(verdict) = unless_stopped(&work.turn.stop, guardrail.check(work.ctx.clone())).await
            else {
                return Some(Given::cancelled());
            };
            match verdict {
                Ok(ToolVerdict::Allow) => {}
                Ok(ToolVerdict::Reject(message)) => return Some(Given::new(How::Guarded, message)),
                Ok(ToolVerdict::Replace(output)) => return Some(Given::new(How::Guarded, output)),
                Ok(ToolVerdict::Stop) => {
                    let failure = Failure::ToolInputGuardrail {
                        guardrail: guardrail.name.to_string(),
                        tool: work.ready.tool.key().to_string(),
                        call: work.call.clone(),
                    };
                    return Some(Given::fatal(How::Guarded, text::CANCELLED, failure));
                }
                Err(error) => {
                    let message = readable(format!("guardrail `{}` failed: {error}", guardrail.name));
                    self.emitter.emit(EventKind::Warning { message }).await;
                    return Some(Given::new(How::Guarded, GUARDRAIL_FAILED));
                }
            }
        }
        None
    }

    /// Runs the output guardrails in order, each on what the ones before made of the output.
    pub(super) async fn guard_output(&self, work: &CallWork<'_, C>, mut given: Given) -> Given {
        for guardrail in &work.ready.tool.output_guardrails {
            let checked = guardrail.check(work.ctx.clone(), given.output.clone());
            let Some(verdict) = unless_stopped(&work.turn.stop, checked).await else {
                return Given::cancelled();
            };
            match verdict {
                Ok(ToolVerdict::Allow) => {}
                Ok(ToolVerdict::Replace(output)) => given.output = output,
                Ok(ToolVerdict::Reject(message)) => return Given::new(How::Guarded, message),
                Ok(ToolVerdict::Stop) => {
                    let failure = Failure::ToolOutputGuardrail {
                        guardrail: guardrail.name.to_string(),
                        tool: work.ready.tool.key().to_string(),
                        call: work.call.clone(),
                    };
                    return Given::fatal(How::Guarded, text::CANCELLED, failure);
                }
                Err(error) => {
                    let message = readable(format!("guardrail `{}` failed: {error}", guardrail.name));
                    self.emitter.emit(EventKind::Warning { message }).await;
                    return Given::new(How::Guarded, GUARDRAIL_FAILED);
                }
            }
        }
        given
    }
}
