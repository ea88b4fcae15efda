// Holds a conversation with a server through the official Agents client: a tool call, its result, an interruption.
import { createRequire } from 'node:module';

const require = createRequire(process.env.WINDLASS_NODE_MODULES + '/');
const { RealtimeAgent, RealtimeSession, OpenAIRealtimeWebSocket, tool } = require('@openai/agents-realtime');
const { z } = require('zod');

let looked = 0;
const look = tool({
  name: 'look',
  description: 'Looks.',
  parameters: z.object({}),
  execute: async () => {
    looked += 1;
    return '42';
  },
});
const agent = new RealtimeAgent({ name: 'guide', instructions: 'Be brief.', tools: [look] });
const transport = new OpenAIRealtimeWebSocket({ url: process.argv[2], useInsecureApiKey: true });
const session = new RealtimeSession(agent, { transport });
let bytes = 0;
const kinds = new Set();
session.on('audio', (event) => (bytes += event.data.byteLength));
session.on('error', (event) => {
  console.log('error', JSON.stringify(event.error ?? event));
  process.exit(1);
});
const done = new Promise((resolve) => {
  let answers = 0;
  transport.on('*', (event) => {
    kinds.add(event.type);
    if (event.type === 'response.done' && ++answers === 2) resolve();
  });
});
await session.connect({ apiKey: 'ek_none' });
session.sendMessage('Hello');
const late = setTimeout(() => {
  console.log('late', looked, bytes, [...kinds].join(' '));
  process.exit(1);
}, 20000);
await done;
clearTimeout(late);
await new Promise((resolve) => setTimeout(resolve, 200));
if (looked !== 1 || bytes < 1000) {
  console.log('not as it should be', looked, bytes, [...kinds].join(' '));
  process.exit(1);
}
session.close();
console.log('ok');
process.exit(0);
