# Measures Playwright with a given browser and page; prints the times in milliseconds as one line of JSON.
import json
import sys
import time

from playwright.sync_api import sync_playwright

url, program, rounds = sys.argv[1], sys.argv[2], int(sys.argv[3])
times = {name: [] for name in ("start", "open", "screenshot", "click", "type", "both")}


def timed(name, act):
    begun = time.perf_counter()
    result = act()
    times[name].append((time.perf_counter() - begun) * 1000)
    return result


def both():
    page.mouse.click(100, 55)
    page.screenshot()


with sync_playwright() as playwright:

    def start():
        browser = playwright.chromium.launch(
            executable_path=program, args=["--no-sandbox", "--disable-dev-shm-usage"]
        )
        return browser, browser.new_page(viewport={"width": 1280, "height": 800})

    browser, page = timed("start", start)
    timed("open", lambda: page.goto(url))
    for _ in range(rounds):
        timed("click", lambda: page.mouse.click(100, 55))
        time.sleep(0.05)
        timed("type", lambda: page.keyboard.type("hello world, 24 letters!"))
        time.sleep(0.05)
        timed("screenshot", page.screenshot)
        timed("both", both)
    browser.close()
print(json.dumps(times))
