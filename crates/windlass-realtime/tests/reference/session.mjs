// Holds the compared conversation through the reference's JavaScript client: a tool call, a handoff, a close.
import { createRequire } from 'node:module';

const require = createRequire(process.env.WINDLASS_NODE_MODULES + '/');
const { RealtimeAgent, RealtimeSession, OpenAIRealtimeWebSocket, tool } = require('@openai/agents-realtime');
const { z } = require('zod');

const look = tool({ name: 'look', description: 'Looks.', parameters: z.object({}), execute: async () => '42' });
const other = new RealtimeAgent({ name: 'other', instructions: 'Other.' });
const guide = new RealtimeAgent({ name: 'guide', instructions: 'Guide.', tools: [look], handoffs: [other] });
const transport = new OpenAIRealtimeWebSocket({ url: process.argv[2], useInsecureApiKey: true });
const session = new RealtimeSession(guide, { transport, tracingDisabled: true });
session.on('error', (event) => {
  console.log('error', JSON.stringify(event.error ?? event));
  process.exit(1);
});
const done = new Promise((resolve) => {
  let answers = 0;
  transport.on('*', (event) => {
    if (event.type !== 'response.done') return;
    answers += 1;
    if (answers === 2) setTimeout(() => session.sendMessage('Hand me over'), 50);
    if (answers === 4) resolve();
  });
});
await session.connect({ apiKey: 'ek_none' });
session.sendMessage('Look');
await done;
await new Promise((resolve) => setTimeout(resolve, 200));
session.close();
console.log('ok');
process.exit(0);
