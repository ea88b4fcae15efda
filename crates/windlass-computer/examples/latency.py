"""The figures of examples/latency.rs, for Playwright with the same browser on the same page.

pip install playwright; then run `latency -- --serve` and give its address: python3 latency.py http://127.0.0.1:PORT/
"""
import json
import shutil
import sys
import time

from playwright.sync_api import sync_playwright

ROUNDS = 50


def deciles(times):
    times = sorted(times)
    at = lambda part: round(times[len(times) * part // 10] * 1000, 1)
    return {"p50": at(5), "p90": at(9)}


def timed(times, act):
    begun = time.perf_counter()
    act()
    times.append(time.perf_counter() - begun)


looks, clicks, types, start, opened = [], [], [], [], []
with sync_playwright() as playwright:
    begun = time.perf_counter()
    browser = playwright.chromium.launch(
        executable_path=shutil.which("chromium"), args=["--no-sandbox", "--disable-dev-shm-usage"]
    )
    page = browser.new_page(viewport={"width": 1280, "height": 800})
    start.append(time.perf_counter() - begun)
    timed(opened, lambda: page.goto(sys.argv[1]))
    for _ in range(ROUNDS):
        timed(clicks, lambda: page.mouse.click(100, 55))
        time.sleep(0.05)
        timed(types, lambda: page.keyboard.type("hello world, 24 letters!"))
        time.sleep(0.05)
        timed(looks, lambda: page.screenshot())
    browser.close()
print(
    json.dumps(
        {
            "who": "playwright",
            "rounds": ROUNDS,
            "start_ms": round(start[0] * 1000, 1),
            "open_ms": round(opened[0] * 1000, 1),
            "screenshot_ms": deciles(looks),
            "click_ms": deciles(clicks),
            "type_24_ms": deciles(types),
        }
    )
)
