// Audio of the page, in the audio thread: the microphone as PCM16 at 24 kHz, and the speaker with exact positions.
'use strict';

const RATE = 24000;
const PIECE = 960; // 40 ms
const PREBUFFER = RATE * 0.12;
const REPORT = RATE * 0.1;

/** Sends the microphone in pieces of 40 ms, resampled if the device has another rate. */
class Microphone extends AudioWorkletProcessor {
  constructor() {
    super();
    this.piece = new Int16Array(PIECE);
    this.length = 0;
    this.power = 0;
    this.position = 0;
    this.last = 0;
  }

  process(inputs) {
    const channel = inputs[0] && inputs[0][0];
    if (!channel) return true;
    const step = sampleRate / RATE;
    // `position` is the place of the next output sample; -1 is the last sample of the block before.
    while (this.position < channel.length) {
      const at = Math.floor(this.position);
      const part = this.position - at;
      const before = at === 0 ? this.last : channel[at - 1];
      this.push(step === 1 ? channel[at] : before * (1 - part) + channel[at] * part);
      this.position += step;
    }
    this.position -= channel.length;
    this.last = channel[channel.length - 1];
    return true;
  }

  push(sample) {
    const clipped = Math.max(-1, Math.min(1, sample));
    this.power += clipped * clipped;
    this.piece[this.length++] = Math.round(clipped * 32767);
    if (this.length === PIECE) {
      const audio = this.piece;
      this.port.postMessage({ audio: audio.buffer, level: Math.sqrt(this.power / PIECE) }, [audio.buffer]);
      this.piece = new Int16Array(PIECE);
      this.length = 0;
      this.power = 0;
    }
  }
}

/** Plays chunks of speech one after another, and reports how many bytes of each track were played. */
class Speaker extends AudioWorkletProcessor {
  constructor() {
    super();
    this.chunks = [];
    this.queued = 0;
    this.isPlaying = false;
    this.phase = 0;
    this.played = new Map();
    this.unreported = 0;
    this.power = 0;
    this.port.onmessage = (event) => this.onMessage(event.data);
  }

  onMessage(message) {
    if (message.flush) {
      this.chunks = [];
      this.queued = 0;
      this.isPlaying = false;
      this.report();
      this.played.clear();
    } else if (message.ended) {
      this.isPlaying = this.chunks.length > 0;
    } else {
      const samples = new Int16Array(message.audio);
      this.chunks.push({ track: message.track, start: message.start, samples, at: 0 });
      this.queued += samples.length;
      if (this.queued >= PREBUFFER) this.isPlaying = true;
    }
  }

  nextSample() {
    const chunk = this.chunks[0];
    if (!chunk) return null;
    const sample = chunk.samples[chunk.at++] / 32768;
    this.queued--;
    this.played.set(chunk.track, chunk.start + 2 * chunk.at);
    this.unreported++;
    if (chunk.at >= chunk.samples.length) this.chunks.shift();
    return sample;
  }

  process(_inputs, outputs) {
    const output = outputs[0];
    const channel = output[0];
    const step = RATE / sampleRate;
    for (let at = 0; at < channel.length; at++) {
      let sample = 0;
      if (this.isPlaying) {
        this.phase += step;
        while (this.phase >= 1) {
          this.phase -= 1;
          const next = this.nextSample();
          if (next === null) {
            this.isPlaying = false;
            this.current = 0;
            break;
          }
          this.current = next;
        }
        sample = this.current || 0;
      }
      channel[at] = sample;
      this.power += sample * sample;
    }
    for (let other = 1; other < output.length; other++) output[other].set(channel);
    if (this.unreported >= REPORT || (this.unreported > 0 && !this.isPlaying)) this.report();
    return true;
  }

  report() {
    const level = Math.sqrt(this.power / REPORT);
    this.port.postMessage({ played: [...this.played], level: this.isPlaying ? level : 0 });
    this.unreported = 0;
    this.power = 0;
    // Only the newest tracks can still change.
    while (this.played.size > 8) this.played.delete(this.played.keys().next().value);
  }
}

registerProcessor('microphone', Microphone);
registerProcessor('speaker', Speaker);
