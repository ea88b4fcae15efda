// Contacts another site in both ways that a worker has, fetch and WebSocket, and then posts a message.
const to = new URL(location).searchParams.get('to');
const socket = name => new Promise(done => { new WebSocket(to.replace('http', 'ws') + name).onclose = done; });
const asked = fetch(to + '/from-worker', { method: 'POST', body: 'x', mode: 'no-cors' }).catch(() => 0)
  .then(() => socket('/socket-of-worker').catch(() => 0));
self.oninstall = event => event.waitUntil(asked);
if (self.postMessage && !self.registration) asked.then(() => postMessage('done'));
