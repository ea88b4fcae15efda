// The page of `windlass talk`. Everything from the session is untrusted text: it is shown with textContent, never as HTML.
'use strict';

const element = (id) => document.getElementById(id);
const page = document.body;
const CLICK_GUARD_MS = 700;
const SOUND_START_MS = 4000;
const RETRY_MS = [300, 600, 1200, 2500, 5000];

let socket = null;
let retries = 0;
let hasEnded = false;
let isMuted = false;
let audio = null; // { context, speaker, microphone, stream }
let audioTrouble = '';
const items = new Map(); // item id -> list entry
const calls = new Map(); // call id -> list entry
const cards = new Map(); // run and path of a held call -> card
const received = new Map(); // track -> bytes received on this socket

function make(tag, className, text) {
  const made = document.createElement(tag);
  if (className) made.className = className;
  if (text !== undefined) made.textContent = text;
  return made;
}

function setStatus(text) {
  element('status').textContent = audioTrouble ? text + ' ' + audioTrouble : text;
}

function describeState() {
  if (hasEnded) return;
  const link = page.dataset.link;
  if (link === 'busy') return setStatus('Another page talks to this agent. Close it, and this one takes over.');
  if (link === 'lost') return setStatus('The connection to windlass was lost. Trying again …');
  if (link === 'connecting') return setStatus('Connecting …');
  if (page.dataset.provider === 'lost') return setStatus('The voice lost its connection. Reconnecting …');
  if (page.dataset.microphone === 'on' && isMuted) return setStatus('Muted.');
  if (page.dataset.microphone === 'on' && page.dataset.speech === 'user') return setStatus('Listening …');
  if (page.dataset.microphone === 'on') return setStatus('Speak. You can interrupt the answer by speaking.');
  setStatus('Press “Start talking”, or type a message.');
}

// The socket.

function connect() {
  const address = new URL('socket', window.location.href);
  address.protocol = 'ws:';
  socket = new WebSocket(address);
  socket.binaryType = 'arraybuffer';
  socket.onmessage = (event) => {
    if (typeof event.data === 'string') onMessage(JSON.parse(event.data));
    else onAudio(event.data);
  };
  socket.onclose = () => {
    flushSpeaker();
    if (hasEnded) return;
    if (page.dataset.link !== 'busy') page.dataset.link = 'lost';
    describeState();
    window.setTimeout(connect, RETRY_MS[Math.min(retries++, RETRY_MS.length - 1)]);
  };
}

function send(message) {
  if (socket && socket.readyState === WebSocket.OPEN) socket.send(JSON.stringify(message));
}

const handlers = {
  ready(message) {
    items.clear();
    calls.clear();
    cards.clear();
    received.clear();
    element('transcript').replaceChildren();
    element('approvals').replaceChildren();
    const [agent, ...notice] = (message.notice || 'windlass talk').split('\n');
    element('agent').textContent = agent;
    document.title = agent + ' · windlass talk';
    element('notice').textContent = notice.join('\n');
  },
  live(message) {
    retries = 0;
    page.dataset.link = 'live';
    page.dataset.provider = message.is_connected ? 'live' : 'lost';
    describeState();
  },
  busy() {
    page.dataset.link = 'busy';
    describeState();
  },
  item: showItem,
  item_removed(message) {
    const entry = items.get(message.item);
    if (entry) entry.remove();
    items.delete(message.item);
  },
  text_delta(message) {
    const entry = items.get(message.item) || addMessage(message.item, message.role);
    entry.querySelector('.text').textContent += message.delta;
    entry.scrollIntoView({ block: 'nearest' });
  },
  speech_started() {
    page.dataset.speech = 'user';
    describeState();
  },
  speech_stopped() {
    page.dataset.speech = 'none';
    describeState();
  },
  turn_started() {
    element('stop').disabled = false;
  },
  turn_ended(message) {
    const usage = message.usage;
    const words = [];
    if (message.first_audio_ms !== null) words.push('first audio after ' + message.first_audio_ms + ' ms');
    if (usage) {
      words.push('input ' + usage.input.text + ' text, ' + usage.input.audio + ' audio tokens');
      words.push('output ' + usage.output.text + ' text, ' + usage.output.audio + ' audio tokens');
    }
    element('usage').textContent = words.join(' · ');
  },
  track() {},
  audio_ended() {
    if (audio) audio.speaker.port.postMessage({ ended: true });
  },
  audio_interrupted() {
    flushSpeaker();
    element('stop').disabled = true;
    page.dataset.interruptions = Number(page.dataset.interruptions || 0) + 1;
  },
  call_started(message) {
    setCallState(message.call, 'running', '', message.tool);
  },
  call_progress(message) {
    setCallState(message.call, 'running', message.progress);
  },
  call_settled(message) {
    setCallState(message.call, message.status, message.output);
  },
  call_held: showCard,
  call_released(message) {
    dropCard((card) => card.run === message.run && card.path === message.path);
  },
  decided(message) {
    dropCard((card) => card.digest === message.digest);
  },
  refused(message) {
    addNote(message.message);
    for (const card of cards.values()) card.setBusy(false);
  },
  agent_changed(message) {
    addNote(message.from + ' handed over to ' + message.to + '.');
  },
  disconnected(message) {
    flushSpeaker();
    element('stop').disabled = true;
    page.dataset.provider = 'lost';
    page.dataset.speech = 'none';
    addNote('The voice lost its connection: ' + message.reason);
    describeState();
  },
  reconnected() {
    page.dataset.provider = 'live';
    page.dataset.reconnects = Number(page.dataset.reconnects || 0) + 1;
    addNote('The voice is connected again.');
    describeState();
  },
  response_held() {
    addNote('The answer waits until you have finished speaking.');
  },
  budget_reached(message) {
    addNote(message.message);
  },
  guardrail_tripped(message) {
    addNote('A guardrail stopped the answer: ' + message.guardrails.join(', '));
  },
  error(message) {
    addNote(message.message);
  },
  closed(message) {
    hasEnded = true;
    page.dataset.link = 'ended';
    setStatus('The conversation has ended: ' + message.reason);
    for (const card of cards.values()) card.setBusy(true);
  },
};

function onMessage(message) {
  const handle = handlers[message.type];
  if (handle) handle(message);
}

// The transcript.

function addMessage(id, role) {
  const entry = make('li', role);
  entry.append(make('span', 'who', role === 'user' ? 'You' : element('agent').textContent), make('span', 'text', ''));
  items.set(id, entry);
  return place(entry);
}

function place(entry) {
  element('transcript').append(entry);
  entry.scrollIntoView({ block: 'nearest' });
  return entry;
}

function addNote(text) {
  place(make('li', 'note', text));
}

function showItem(message) {
  if (message.role === 'call') {
    calls.set(message.call, callEntry(message.call, message.tool, message.item));
    calls.get(message.call).querySelector('.text').textContent = message.tool + ' ' + message.text;
    return;
  }
  if (message.role === 'output') {
    const call = calls.get(message.call);
    if (call && !call.dataset.status) setCallState(message.call, 'settled', message.text);
    return;
  }
  if (message.role === 'system') return;
  let entry = items.get(message.item);
  if (!entry) {
    entry = addMessage(message.item, message.role);
    const before = items.get(message.after);
    if (before && before.parentNode) before.after(entry);
  }
  entry.className = message.role + (message.status === 'interrupted' ? ' interrupted' : '');
  if (message.text || message.status !== 'in_progress') entry.querySelector('.text').textContent = message.text;
}

function callEntry(call, tool, item) {
  const known = (item && items.get(item)) || calls.get(call);
  if (known) {
    if (item) items.set(item, known);
    return known;
  }
  const entry = make('li', 'call');
  const who = make('span', 'who', 'tool call');
  who.append(make('span', 'state'));
  entry.append(who, make('span', 'text', tool || call), make('span', 'result'));
  if (item) items.set(item, entry);
  return place(entry);
}

function setCallState(call, status, output, tool) {
  const entry = callEntry(call, tool);
  calls.set(call, entry);
  entry.dataset.status = status;
  entry.querySelector('.state').textContent = ' · ' + status.replaceAll('_', ' ');
  if (output) entry.querySelector('.result').textContent = output;
}

// Decisions.

function dropCard(isIt) {
  for (const [key, card] of cards) {
    if (isIt(card)) {
      card.element.remove();
      cards.delete(key);
    }
  }
}

function showCard(message) {
  dropCard((card) => card.path === message.path && card.run === message.run);
  const box = make('article', 'card');
  // Each line is an element of its own, whose continuations are indented, so that no text can imitate a line.
  const text = make('pre');
  text.append(...message.lines.flatMap((line) => line.split('\n')).map((line) => make('span', 'line', line + '\n')));
  text.tabIndex = 0;
  // What the tool saw: a call can be approved after its picture was on the screen.
  const picture = message.picture ? make('img', 'shot') : null;
  if (picture) {
    picture.alt = 'picture of what the tool saw';
    picture.src = message.picture;
    text.append(picture);
  }
  const actions = make('div', 'actions');
  const buttons = [];
  const card = {
    path: message.path, run: message.run, digest: message.digest, element: box,
    isRead: false, isFresh: true, isBusy: false,
    setBusy(isBusy) {
      card.isBusy = isBusy;
      const isLocked = isBusy || card.isFresh;
      for (const button of buttons) button.disabled = isLocked || !(card.isRead || button.classList.contains('reject'));
    },
  };
  const decide = (decision, standing) => {
    card.setBusy(true);
    send({ type: 'decide', digest: message.digest, decision, standing: Boolean(standing) });
  };
  const addButton = (label, className, onClick) => {
    const button = make('button', className, label);
    button.type = 'button';
    button.onclick = onClick;
    buttons.push(button);
    actions.append(button);
  };
  const addInput = (label) => {
    const input = make('input');
    input.setAttribute('aria-label', label);
    input.placeholder = label;
    actions.append(input);
    return input;
  };
  // The hint stands between the call and its buttons, which it explains.
  const scrollHint = make('p', 'hint scroll', 'Scroll to the end of the call to approve it.');
  box.append(make('h2', '', message.reason === 'question' ? 'A question for you' : 'This call waits for you'), text, scrollHint, actions);
  if (message.can_decide) {
    if (message.reason === 'question') {
      const input = addInput('Your answer');
      addButton('Answer', 'approve', () => decide({ kind: 'answer', value: parseAnswer(input.value) }));
    } else if (message.reason === 'in_doubt') {
      addButton('It did not happen: do it', 'approve', () => decide({ kind: 'confirm_not_executed' }));
      addButton('Nobody knows', 'reject', () => decide({ kind: 'outcome_unknown' }));
      const input = addInput('What it returned');
      addButton('It happened', 'approve', () => decide({ kind: 'confirm_executed', output: input.value }));
    } else {
      let standing = null;
      addButton('Approve', 'approve', () => decide({ kind: 'approve' }, standing && standing.checked));
      const input = addInput('Reason, for the model');
      addButton('Reject', 'reject', () => decide({ kind: 'reject', message: input.value }, standing && standing.checked));
      if (message.offers_standing) {
        standing = make('input');
        standing.type = 'checkbox';
        const label = make('label', '', ' also later calls of this tool');
        label.prepend(standing);
        actions.append(label);
      }
    }
  }
  box.append(make('p', 'hint', 'From a terminal: windlass approve ' + message.run + ' ' + message.path));
  cards.set(message.run + ' ' + message.path, card);
  element('approvals').append(box);
  // A call can be approved after its last line was on the screen.
  const look = () => {
    const isLoaded = !picture || (picture.complete && picture.naturalWidth > 0);
    card.isRead = card.isRead || (isLoaded && text.scrollTop + text.clientHeight >= text.scrollHeight - 2);
    scrollHint.hidden = card.isRead || !message.can_decide;
    card.setBusy(card.isBusy);
  };
  text.onscroll = look;
  if (picture) picture.onload = look;
  look();
  // A click that was meant for something else does not decide a call that appears under the pointer.
  window.setTimeout(() => {
    card.isFresh = false;
    card.setBusy(card.isBusy);
  }, CLICK_GUARD_MS);
  setCallState(message.call, 'waits for a decision', '', message.tool);
  box.scrollIntoView({ block: 'nearest' });
}

function parseAnswer(text) {
  try {
    return JSON.parse(text);
  } catch {
    return text;
  }
}

// Sound.

function onAudio(data) {
  const track = new DataView(data).getUint32(0, true);
  const start = received.get(track) || 0;
  received.set(track, start + data.byteLength - 4);
  if (!audio || audio.context.state !== 'running') return reportUnplayed();
  const samples = data.slice(4, data.byteLength - (data.byteLength % 2));
  audio.speaker.port.postMessage({ track, start, audio: samples }, [samples]);
}

/** Reports speech that this page cannot play as played: its user reads it, so it is not taken back as unheard. */
function reportUnplayed() {
  for (const [track, bytes] of received) send({ type: 'played', track, bytes });
}

function flushSpeaker() {
  if (audio) audio.speaker.port.postMessage({ flush: true });
  element('output').value = 0;
}

/** Opens the sound, or returns null and says why it could not be opened. */
async function openSound(wantsMicrophone) {
  let stream = null;
  audioTrouble = '';
  if (wantsMicrophone) {
    setStatus('Your browser asks whether this page may use the microphone …');
    try {
      const wanted = { echoCancellation: true, noiseSuppression: true, autoGainControl: true, channelCount: 1 };
      stream = await navigator.mediaDevices.getUserMedia({ audio: wanted });
    } catch (error) {
      audioTrouble = 'There is no microphone (' + error.name + '); you can type.';
    }
  }
  // Some browsers cannot connect a microphone to a context of another rate; the worklets resample then.
  try {
    const sound = await openContext(stream, { sampleRate: 24000 }).catch(() => openContext(stream, {}));
    if (sound.context.state !== 'running') reportSilentContext(sound.context);
    return sound;
  } catch (error) {
    if (stream) for (const track of stream.getTracks()) track.stop();
    audioTrouble = 'The browser cannot open its sound (' + error.name + '); you can type.';
    return null;
  }
}

async function openContext(stream, options) {
  const context = new AudioContext(options);
  try {
    await context.audioWorklet.addModule('audio.js');
    const speaker = new AudioWorkletNode(context, 'speaker', { numberOfInputs: 0, outputChannelCount: [1] });
    speaker.connect(context.destination);
    let microphone = null;
    if (stream) {
      microphone = new AudioWorkletNode(context, 'microphone', { numberOfOutputs: 0 });
      context.createMediaStreamSource(stream).connect(microphone);
    }
    // A browser whose output device does not start keeps this promise open for ever.
    const isLate = new Promise((resolve) => window.setTimeout(resolve, SOUND_START_MS));
    await Promise.race([context.resume(), isLate]);
    speaker.port.onmessage = (event) => {
      for (const [track, bytes] of event.data.played) send({ type: 'played', track, bytes });
      element('output').value = event.data.level;
    };
    if (microphone) microphone.port.onmessage = (event) => onMicrophone(event.data);
    return { context, speaker, microphone, stream };
  } catch (error) {
    await context.close();
    throw error;
  }
}

function onMicrophone(piece) {
  element('level').value = isMuted ? 0 : Math.min(1, piece.level * 4);
  if (!isMuted && socket && socket.readyState === WebSocket.OPEN && page.dataset.link === 'live') {
    socket.send(piece.audio);
  }
}

function reportSilentContext(context) {
  audioTrouble = 'The browser has not started its sound: nothing is heard in either direction; you can type.';
  context.onstatechange = () => {
    if (context.state !== 'running') return;
    context.onstatechange = null;
    audioTrouble = '';
    showMicrophone();
  };
}

function showMicrophone() {
  const isOn = Boolean(audio && audio.microphone && audio.context.state === 'running');
  page.dataset.microphone = isOn ? 'on' : 'off';
  element('start').textContent = isOn ? 'Stop talking' : 'Start talking';
  element('mute').disabled = !isOn;
  describeState();
}

async function closeSound() {
  if (!audio) return;
  const closing = audio;
  audio = null;
  reportUnplayed();
  if (closing.stream) for (const track of closing.stream.getTracks()) track.stop();
  await closing.context.close();
}

element('start').onclick = async () => {
  element('start').disabled = true;
  const wasOn = page.dataset.microphone === 'on';
  await closeSound();
  if (!wasOn) audio = await openSound(true);
  element('start').disabled = false;
  if (wasOn) {
    page.dataset.speech = 'none';
    send({ type: 'clear_audio' });
  }
  showMicrophone();
};

element('mute').onclick = () => {
  isMuted = !isMuted;
  element('mute').setAttribute('aria-pressed', String(isMuted));
  element('mute').textContent = isMuted ? 'Unmute' : 'Mute';
  if (isMuted) {
    page.dataset.speech = 'none';
    send({ type: 'clear_audio' });
  }
  describeState();
};

element('stop').onclick = () => {
  flushSpeaker();
  send({ type: 'interrupt' });
};

element('compose').onsubmit = async (event) => {
  event.preventDefault();
  const text = element('text').value.trim();
  if (!text) return;
  element('text').value = '';
  // A typed message is answered by voice too.
  if (!audio) audio = await openSound(false);
  describeState();
  send({ type: 'text', text });
};

connect();
