//! Answers: what is said in them, who checks it, how they are interrupted, and how they end.

use std::sync::Arc;
use std::time::Duration;

use windlass::Usage;
use windlass::core::Role;

use super::calls::MayRun;
use super::playback::heard_text;
use super::{AgentKey, Answer, AudioRelease, Check, Effect, FollowUp, Machine};
use crate::event::{AudioChunk, LiveEvent};
use crate::history::{ItemStatus, LiveItem, LiveItemKind, Part};
use crate::id::{CommandId, ItemId, ResponseId};
use crate::metrics::TurnMetrics;
use crate::model::{CommandKind, ResponsePlace, ResponseStatus, WordForm};

/// So many answers in a row may be followed up, until the user says something again.
const MOST_FOLLOW_UPS: u32 = 3;

/// So many answers that are over are remembered, so that what comes late of them does not begin them again.
const REMEMBERED: usize = 64;

/// One answer.
#[derive(Debug)]
pub(super) struct Turn {
    agent: AgentKey,
    /// Whether anybody looks at what is said.
    is_checked: bool,
    began: Duration,
    /// Since when it was waited for.
    wanted: Option<Duration>,
    /// All that was said, by item and part, in the order in which it came.
    words: Vec<((ItemId, u32), String)>,
    letters: usize,
    /// How many letters the last check saw.
    checked: usize,
    open_checks: u32,
    /// Whether a guardrail objected, and that was dealt with.
    is_tripped: bool,
    /// Whether what comes of it is not passed on any more.
    is_cut: bool,
    interrupted_at: Option<Duration>,
    metrics: TurnMetrics,
    held_audio: Vec<(usize, AudioChunk)>,
    end: Option<End>,
}

#[derive(Debug)]
struct End {
    status: ResponseStatus,
    usage: Option<Usage>,
    calls: Vec<LiveItem>,
}

impl Turn {
    pub(super) fn is_over(&self) -> bool {
        self.end.is_some()
    }

    /// Whether nothing was said in it.
    pub(super) fn is_silent(&self) -> bool {
        self.letters == 0 && self.metrics.to_first_audio.is_none()
    }

    fn text(&self) -> Arc<str> {
        self.words.iter().map(|(_, words)| words.as_str()).collect::<String>().into()
    }
}

impl Machine {
    pub(super) fn response_started(
        &mut self,
        response: ResponseId,
        asked_by: Option<&CommandId>,
        place: ResponsePlace,
    ) {
        if place == ResponsePlace::Beside {
            return;
        }
        if self.turns.contains_key(&response) || self.over.contains(&response) {
            // What came of it came first.
            if let Some(asked_by) = asked_by {
                self.gate.confirmed(asked_by);
            }
            return;
        }
        if let Some(other) = self.gate.active().cloned() {
            // There is one at a time, so the end of the other was lost on the way.
            self.response_ended(&other, ResponseStatus::Lost, None, Vec::new());
        }
        let unconfirmed: Vec<ItemId> = self.unconfirmed.values().cloned().collect();
        let wanted =
            self.gate.started(self.now, response.clone(), asked_by, |item| !unconfirmed.contains(item));
        let wanted = self.asked_at.take().or(wanted);
        self.turns.insert(
            response.clone(),
            Turn {
                agent: self.agent.clone(),
                is_checked: self.is_checked,
                began: self.now,
                wanted,
                words: Vec::new(),
                letters: 0,
                checked: 0,
                open_checks: 0,
                is_tripped: false,
                is_cut: false,
                interrupted_at: None,
                metrics: TurnMetrics {
                    to_response: wanted.map(|wanted| self.now.saturating_sub(wanted)),
                    ..TurnMetrics::default()
                },
                held_audio: Vec::new(),
                end: None,
            },
        );
        self.newest = Some(response.clone());
        let agent = self.agent.name.clone();
        self.emit(LiveEvent::TurnStarted { response, agent });
    }

    /// Something comes of an answer whose beginning was lost on the way: it has begun all the same.
    pub(super) fn begun(&mut self, response: &ResponseId) {
        if !self.turns.contains_key(response) && !self.over.contains(response) {
            self.response_started(response.clone(), None, ResponsePlace::InConversation);
        }
    }

    pub(super) fn audio(&mut self, chunk: AudioChunk) {
        self.begun(&chunk.response);
        self.gate.heard(self.now, &chunk.response);
        let Some(turn) = self.turns.get_mut(&chunk.response).filter(|turn| turn.end.is_none()) else {
            self.metrics.suppressed_output += 1;
            return;
        };
        if turn.metrics.to_first_audio.is_none() {
            let since = turn.wanted.unwrap_or(turn.began);
            turn.metrics.to_first_audio = Some(self.now.saturating_sub(since));
        }
        if turn.is_cut {
            self.metrics.suppressed_output += 1;
            let AudioChunk { response, item, content, bytes } = &chunk;
            self.playback.received(self.now, response, item, *content, bytes.len() as u64);
        } else if self.rules.release == AudioRelease::Checked && turn.is_checked {
            turn.held_audio.push((turn.letters, chunk));
        } else {
            self.play(chunk);
        }
    }

    fn play(&mut self, chunk: AudioChunk) {
        let AudioChunk { response, item, content, bytes } = &chunk;
        self.playback.received(self.now, response, item, *content, bytes.len() as u64);
        self.emit(LiveEvent::Audio(chunk));
    }

    pub(super) fn audio_ended(&mut self, response: &ResponseId, item: &ItemId, content: u32) {
        self.gate.heard(self.now, response);
        let is_held = self.turns.get(response).is_some_and(|turn| !turn.held_audio.is_empty());
        if !is_held {
            self.playback.completed(item, content);
        }
        self.recut(response, item, content);
        if self.turns.get(response).is_some_and(|turn| !turn.is_cut) {
            self.emit(LiveEvent::AudioEnded { item: item.clone(), content });
        }
    }

    pub(super) fn words(
        &mut self,
        response: &ResponseId,
        item: &ItemId,
        content: u32,
        delta: &str,
        form: WordForm,
    ) {
        self.begun(response);
        self.gate.heard(self.now, response);
        let Some(turn) = self.turns.get_mut(response).filter(|turn| turn.end.is_none()) else { return };
        let place = (item.clone(), content);
        match turn.words.iter_mut().find(|(known, _)| *known == place) {
            Some((_, words)) => words.push_str(delta),
            None => turn.words.push((place, delta.to_owned())),
        }
        turn.letters += delta.chars().count();
        let is_cut = turn.is_cut;
        self.write_words(response, item, content, form);
        if !is_cut {
            self.emit(LiveEvent::Words { item: item.clone(), delta: delta.to_owned() });
            self.check_if_due(response);
        }
    }

    /// The whole text of a part. What was missed of it on the way is made good.
    pub(super) fn words_ended(
        &mut self,
        response: &ResponseId,
        item: &ItemId,
        content: u32,
        text: &str,
        form: WordForm,
    ) {
        self.gate.heard(self.now, response);
        let Some(turn) = self.turns.get_mut(response).filter(|turn| turn.end.is_none()) else { return };
        let place = (item.clone(), content);
        let known = turn.words.iter().find(|(known, _)| *known == place).map(|(_, words)| words.as_str());
        match text.strip_prefix(known.unwrap_or_default()) {
            Some("") => {}
            Some(rest) => {
                let rest = rest.to_owned();
                self.words(response, item, content, &rest, form);
            }
            None => {
                let before = known.map_or(0, |known| known.chars().count());
                turn.letters = turn.letters - before + text.chars().count();
                turn.words.retain(|(known, _)| *known != place);
                turn.words.push((place, text.to_owned()));
                turn.checked = turn.checked.min(turn.letters.saturating_sub(1));
                self.write_words(response, item, content, form);
            }
        }
    }

    /// Writes into the history what an item says so far: all of it, or what was heard of it.
    fn write_words(&mut self, response: &ResponseId, item: &ItemId, content: u32, form: WordForm) {
        let Some(turn) = self.turns.get(response) else { return };
        let place = (item.clone(), content);
        let Some((_, whole)) = turn.words.iter().find(|(known, _)| *known == place) else { return };
        let part = match form {
            WordForm::Written => Part::text(whole.clone()),
            WordForm::Spoken => Part::spoken(whole.clone()),
        };
        let (agent, response_id) = (turn.agent.name.clone(), response.clone());
        if self.history.get(item).is_some_and(|known| known.status == ItemStatus::Interrupted) {
            self.recut(response, item, content);
            return;
        }
        if self.history.get(item).is_none() {
            let mut new = LiveItem::message(item.clone(), Role::Assistant, Vec::new());
            new.status = ItemStatus::InProgress;
            (new.agent, new.response) = (Some(agent), Some(response_id));
            let change = self.history.put(new, None);
            self.changed(change);
        }
        // Every word is told of as it comes; the history is told of when the item is whole.
        let _ = self.history.edit(item, |known| set_part(known, content, part));
    }

    /// Lets guardrails look, where enough has been said since they last did.
    fn check_if_due(&mut self, response: &ResponseId) {
        let debounce = self.rules.debounce.max(1);
        let Some(turn) = self.turns.get_mut(response) else { return };
        if turn.is_checked && turn.letters / debounce > turn.checked / debounce {
            turn.checked = turn.letters;
            turn.open_checks += 1;
            let check = Check { response: response.clone(), agent: turn.agent.clone(), text: turn.text() };
            self.out.push(Effect::Check(check));
        }
    }

    /// What guardrails said of a text: the names of those that object.
    pub(crate) fn checked(&mut self, response: &ResponseId, text: &Arc<str>, objections: Vec<String>) {
        let Some(turn) = self.turns.get_mut(response) else { return };
        turn.open_checks = turn.open_checks.saturating_sub(1);
        if objections.is_empty() {
            self.release(response, text.chars().count());
        } else if !turn.is_tripped {
            self.trip(response, text, objections);
        }
        self.settle_turn(response);
    }

    /// Passes on the speech that came before the guardrails had a look, or with it.
    fn release(&mut self, response: &ResponseId, letters: usize) {
        let Some(turn) = self.turns.get_mut(response).filter(|turn| !turn.is_cut) else { return };
        let is_last = turn.end.is_some() && turn.open_checks == 0;
        let (free, held) =
            std::mem::take(&mut turn.held_audio).into_iter().partition(|(at, _)| is_last || *at <= letters);
        turn.held_audio = held;
        let free: Vec<(usize, AudioChunk)> = free;
        for (_, chunk) in free {
            self.play(chunk);
        }
    }

    /// A guardrail objects. In this order: nothing more of the answer is passed on, the application is told, the
    /// answer is stopped, and the model is told.
    fn trip(&mut self, response: &ResponseId, text: &Arc<str>, guardrails: Vec<String>) {
        let Some(turn) = self.turns.get_mut(response) else { return };
        turn.is_tripped = true;
        turn.is_cut = true;
        turn.held_audio.clear();
        self.metrics.trips += 1;
        let (text, names) = (text.clone(), guardrails.join(", "));
        self.emit(LiveEvent::GuardrailTripped { response: response.clone(), guardrails, text });
        let is_newest = self.newest.as_ref() == Some(response);
        self.interrupt_playback(Some(response));
        self.stop_response(response);
        let words = match &self.rules.follow_up {
            FollowUp::Name => format!("guardrail triggered: {names}"),
            FollowUp::Say(words) => words.clone(),
            FollowUp::Nothing => return,
        };
        // A model that is objected to again and again is not argued with for ever.
        if is_newest && self.follow_ups < MOST_FOLLOW_UPS {
            self.follow_ups += 1;
            let id = self.next_item();
            let told = LiveItem::message(id.clone(), Role::User, vec![Part::text(words)]);
            self.add(told, None, Answer::Wanted);
            self.gate.want(self.now, Some(id));
        }
    }

    /// Tells the model to stop an answer, where it is under way.
    fn stop_response(&mut self, response: &ResponseId) {
        if self.gate.active() == Some(response) {
            self.gate.stopping(self.now, response);
            self.note_interruption(response);
            self.send(CommandKind::Cancel { response: response.clone() });
        }
    }

    fn note_interruption(&mut self, response: &ResponseId) {
        if let Some(turn) = self.turns.get_mut(response)
            && turn.interrupted_at.is_none()
        {
            turn.interrupted_at = Some(self.now);
            self.metrics.interruptions += 1;
        }
    }

    /// The application interrupts.
    pub(crate) fn interrupt(&mut self) {
        let active = self.gate.active().cloned();
        if let Some(turn) = active.as_ref().and_then(|active| self.turns.get_mut(active)) {
            turn.is_cut = true;
            turn.held_audio.clear();
        }
        self.interrupt_playback(None);
        if let Some(active) = active {
            self.stop_response(&active);
        }
    }

    /// The user speaks while the model does.
    pub(super) fn user_interrupts(&mut self) {
        let Some(server) = self.configuration.live.turns.server() else { return self.interrupt() };
        let cuts = self.interrupt_playback(None);
        let Some(active) = self.gate.active().cloned() else { return };
        if server.interrupts {
            // The server stops it by itself, and may have sent more of it before it did.
            if cuts > 0 {
                self.note_interruption(&active);
            }
        } else if cuts > 0 {
            self.stop_response(&active);
        }
    }

    /// Stops playing what has not been heard, of one answer or of all, and tells the model what was heard.
    pub(super) fn interrupt_playback(&mut self, only: Option<&ResponseId>) -> usize {
        let cuts = self.playback.cut(self.now, only);
        for cut in &cuts {
            if let Some(turn) = self.turns.get_mut(&cut.response) {
                turn.is_cut = true;
                turn.held_audio.clear();
            }
            let (item, content, heard_ms) = (cut.item.clone(), cut.content, cut.heard_ms);
            self.emit(LiveEvent::AudioInterrupted { item: item.clone(), content, heard_ms });
            self.send(CommandKind::Truncate { item: item.clone(), content, heard_ms });
            let change = self.history.edit(&item, |known| known.status = ItemStatus::Interrupted);
            if change.is_some() {
                self.recut(&cut.response, &item, content);
            }
        }
        cuts.len()
    }

    /// Cuts the words of an interrupted item at what was heard of it.
    fn recut(&mut self, response: &ResponseId, item: &ItemId, content: u32) {
        let Some(known) = self.history.get(item).filter(|known| known.status == ItemStatus::Interrupted)
        else {
            return;
        };
        let Some(heard) = self.playback.heard(self.now, item, content) else { return };
        let place = (item.clone(), content);
        let said =
            self.turns.get(response).and_then(|turn| turn.words.iter().find(|(known, _)| *known == place));
        let whole = match said {
            Some((_, words)) => words.clone(),
            None => known.text(),
        };
        let transcript = Some(heard_text(&whole, heard));
        let part = Part::Audio { transcript, heard_ms: Some(heard.heard_ms) };
        let edited = self.history.edit(item, |known| set_part(known, content, part));
        self.changed(edited);
    }

    pub(super) fn response_ended(
        &mut self,
        response: &ResponseId,
        status: ResponseStatus,
        usage: Option<Usage>,
        calls: Vec<LiveItem>,
    ) {
        self.begun(response);
        self.gate.ended(self.now, response);
        let audio = self.playback.length_of(response);
        let Some(turn) = self.turns.get_mut(response).filter(|turn| turn.end.is_none()) else { return };
        turn.metrics.length = self.now.saturating_sub(turn.began);
        turn.metrics.audio = audio;
        turn.metrics.interruption = turn.interrupted_at.map(|at| self.now.saturating_sub(at));
        let is_whole = status == ResponseStatus::Completed && !turn.is_tripped;
        turn.end = Some(End { status, usage, calls });
        if self.over.len() == REMEMBERED {
            self.over.pop_front();
        }
        self.over.push_back(response.clone());
        let places: Vec<(ItemId, u32)> = turn.words.iter().map(|(place, _)| place.clone()).collect();
        // The last look, so that short answers, and the ends of long ones, are seen too.
        if turn.is_checked && turn.letters > turn.checked && !turn.is_tripped {
            turn.checked = turn.letters;
            turn.open_checks += 1;
            let check = Check { response: response.clone(), agent: turn.agent.clone(), text: turn.text() };
            self.out.push(Effect::Check(check));
        }
        for (item, content) in places {
            if is_whole && self.turns.get(response).is_none_or(|turn| turn.held_audio.is_empty()) {
                self.playback.completed(&item, content);
            }
            self.recut(response, &item, content);
            let whole = if is_whole { ItemStatus::Completed } else { ItemStatus::Interrupted };
            let change = self.history.edit(&item, |known| {
                if known.status == ItemStatus::InProgress {
                    known.status = whole;
                }
            });
            self.changed(change);
        }
        self.settle_turn(response);
    }

    /// An answer is done with when it has ended and everything that was said in it has been looked at.
    fn settle_turn(&mut self, response: &ResponseId) {
        let is_settled =
            self.turns.get(response).is_some_and(|turn| turn.end.is_some() && turn.open_checks == 0);
        if !is_settled {
            return;
        }
        self.release(response, usize::MAX);
        let Some(Turn { agent, metrics, end: Some(End { status, usage, calls }), is_tripped, words, .. }) =
            self.turns.remove(response)
        else {
            return;
        };
        if status == ResponseStatus::Completed {
            for ((item, content), _) in &words {
                self.playback.completed(item, *content);
            }
        }
        self.metrics.turn(&metrics, usage.as_ref());
        let is_whole = status == ResponseStatus::Completed && !is_tripped;
        let may_run = if is_whole { MayRun::Yes } else { MayRun::No };
        let agent_name = agent.name.clone();
        self.emit(LiveEvent::TurnEnded {
            response: response.clone(),
            agent: agent_name,
            status,
            usage,
            metrics,
        });
        self.take_calls(response, agent, calls, may_run, usage);
    }
}

/// Puts a part in its place, with empty ones before it where they are missing.
pub(super) fn set_part(item: &mut LiveItem, content: u32, part: Part) {
    let LiveItemKind::Message { parts, .. } = &mut item.kind else { return };
    let content = content.min(63) as usize;
    while parts.len() <= content {
        parts.push(match &part {
            Part::Audio { .. } => Part::Audio { transcript: None, heard_ms: None },
            Part::Text { .. } | Part::Image { .. } => Part::text(""),
        });
    }
    parts[content] = part;
}
