// Measures Playwright with a given browser and page; prints the times in milliseconds as one line of JSON.
const { chromium } = require('playwright-core');

const [url, program, rounds] = process.argv.slice(-3);
const times = { start: [], open: [], screenshot: [], click: [], type: [], both: [] };
const timed = async (name, act) => {
  const begun = performance.now();
  const result = await act();
  times[name].push(performance.now() - begun);
  return result;
};
const pause = () => new Promise(done => setTimeout(done, 50));

(async () => {
  const [browser, page] = await timed('start', async () => {
    const args = ['--no-sandbox', '--disable-dev-shm-usage'];
    const browser = await chromium.launch({ executablePath: program, args });
    return [browser, await browser.newPage({ viewport: { width: 1280, height: 800 } })];
  });
  await timed('open', () => page.goto(url));
  for (let round = 0; round < Number(rounds); round++) {
    await timed('click', () => page.mouse.click(100, 55));
    await pause();
    await timed('type', () => page.keyboard.type('hello world, 24 letters!'));
    await pause();
    await timed('screenshot', () => page.screenshot());
    await timed('both', async () => {
      await page.mouse.click(100, 55);
      await page.screenshot();
    });
  }
  await browser.close();
  console.log(JSON.stringify(times));
})();
