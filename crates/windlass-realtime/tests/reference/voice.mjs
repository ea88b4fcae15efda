// Holds the compared spoken conversation through the reference's JavaScript client: an interruption, a rejected call, and a
// guardrail that trips.
import { createRequire } from 'node:module';

const require = createRequire(process.env.WINDLASS_NODE_MODULES + '/');
const { RealtimeAgent, RealtimeSession, OpenAIRealtimeWebSocket, tool } = require('@openai/agents-realtime');
const { z } = require('zod');

const gated = tool({
  name: 'gated',
  description: 'Needs an approval.',
  parameters: z.object({}),
  needsApproval: true,
  execute: async () => '42',
});
const guide = new RealtimeAgent({ name: 'guide', instructions: 'Guide.', tools: [gated] });
const transport = new OpenAIRealtimeWebSocket({ url: process.argv[2], useInsecureApiKey: true });
const session = new RealtimeSession(guide, {
  transport,
  tracingDisabled: true,
  outputGuardrails: [
    {
      name: 'g',
      execute: async ({ agentOutput }) => ({ tripwireTriggered: agentOutput.includes('forbidden'), outputInfo: {} }),
    },
  ],
  outputGuardrailSettings: { debounceTextLength: 100 },
  config: { audio: { input: { turnDetection: { type: 'semantic_vad', createResponse: true, interruptResponse: true } } } },
});
session.on('error', (event) => {
  console.log('error', JSON.stringify(event.error ?? event));
  process.exit(1);
});

function speak(ms) {
  const samples = new Int16Array(24 * (ms + 1000));
  for (let at = 0; at < ms * 24; at++) samples[at] = Math.floor(at / 55) % 2 === 0 ? 8000 : -8000;
  for (let at = 0; at < samples.length; at += 2400) session.sendAudio(samples.slice(at, at + 2400).buffer);
}

let heard = 0;
session.on('audio', (event) => {
  if (heard === null) return;
  heard += event.data.byteLength;
  if (heard >= 48000) {
    heard = null;
    speak(300);
  }
});
session.on('tool_approval_requested', (_context, _agent, request) => {
  session.reject(request.approvalItem, { message: 'no' });
});
const done = new Promise((resolve) => {
  let answers = 0;
  transport.on('*', (event) => {
    if (event.type !== 'response.done') return;
    answers += 1;
    if (answers === 3) setTimeout(() => session.sendMessage('Swear'), 50);
    if (answers === 5) resolve();
  });
});
await session.connect({ apiKey: 'ek_none' });
speak(500);
await done;
await new Promise((resolve) => setTimeout(resolve, 200));
session.close();
console.log('ok');
process.exit(0);
