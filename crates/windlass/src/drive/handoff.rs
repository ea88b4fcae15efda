//! Passing control from one agent to another.

use windlass_core::{AgentName, CallId, Entry, Failure, HandedOff, Part};

use super::{Driver, Halt};
use crate::agent::HandoffInput;
use crate::error::readable;
use crate::event::EventKind;
use crate::hook::Moment;

impl<C: Send + Sync + 'static> Driver<C> {
    pub(super) async fn hand_off(
        &mut self,
        call: CallId,
        from: AgentName,
        to: AgentName,
        arguments: String,
    ) -> Result<(), Halt> {
        self.guards_settled().await?;
        let agent = self.agent(&from)?;
        let ctx = self.context(&from);
        let tools = match self.tools.take() {
            Some(tools) => tools,
            None => self.unless_stopped(agent.toolset(&ctx, &self.graph)).await??,
        };
        self.agent(&to)?;
        let name = self.locked(|run| run.tool_of(&call).map(|key| key.name().to_owned())).unwrap_or_default();
        let handoff = tools.handoff(&name);
        if let Some(act) = handoff.and_then(|handoff| handoff.on_handoff.clone()) {
            let arguments = serde_json::from_str(&arguments).unwrap_or_default();
            let input = HandoffInput { ctx: ctx.clone(), to: to.clone(), arguments };
            self.unless_stopped(act(input)).await?.map_err(|message| {
                Halt::from(Failure::Handoff { to: to.to_string(), message: readable(message) })
            })?;
        }
        let moment = Moment::HandedOff { ctx, to: to.clone() };
        self.tell_or_fail(&agent, || moment).await?;
        self.show_outputs().await;
        let history = match handoff.and_then(|handoff| handoff.filter.clone()) {
            Some(filter) => {
                let mut before = self.run().clone();
                let entry = Entry::HandedOff(HandedOff { call: call.clone(), to: to.clone(), history: None });
                before.apply(&entry).map_err(|why| self.broken(&why))?;
                Some(filter(before.history().to_vec()))
            }
            None => None,
        };
        self.record(Entry::HandedOff(HandedOff { call, to: to.clone(), history })).await?;
        if self.emitter.is_watched() {
            let handoff = self.run().produced().last().filter(|last| last.part == Part::Handoff).cloned();
            if let Some(handoff) = handoff {
                self.emitter.emit(EventKind::Item(handoff)).await;
            }
            self.emitter.emit(EventKind::Agent { agent: to }).await;
            self.emitter.settled().await;
        }
        self.greeted = None;
        Ok(())
    }
}
