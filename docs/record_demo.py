"""Records `windlass demo` in a terminal and writes it as an animated picture.

    python3 docs/record_demo.py target/debug/windlass docs/demo.svg

It runs the real command in tmux, types the answers, and keeps a frame for every change of the screen. Pauses are
shortened. The picture contains text and no script.
"""

import html
import os
import re
import subprocess
import sys
import tempfile
import time

COLUMNS, ROWS = 92, 42
POLL_SECONDS = 0.1
MAX_FRAME_SECONDS = 1.6
LAST_FRAME_SECONDS = 6.0
# What is typed when the screen shows a text, once each.
ANSWERS = [("Allow it?", "y"), ("Press Enter to resume the run.", "")]
LETTER_WIDTH, LINE_HEIGHT = 8.4, 17
COLOURS = {"31": "#f47067", "32": "#6bc46d", "33": "#daaa3f", "34": "#6cb6ff", "36": "#56d4dd"}


def tmux(socket, *words):
    return subprocess.run(["tmux", "-L", socket, *words], check=True, capture_output=True, text=True).stdout


def record(program):
    """Returns the frames: the time at which each began, and its screen with control sequences."""
    socket = f"record-{os.getpid()}"
    with tempfile.TemporaryDirectory() as folder:
        command = f"cd {folder} && env XDG_STATE_HOME={folder}/state USER=ann {program} demo --color always; echo; sleep 30"
        tmux(socket, "new-session", "-d", "-s", "demo", "-x", str(COLUMNS), "-y", str(ROWS), command)
        frames, answers, began = [], list(ANSWERS), time.monotonic()
        try:
            while True:
                screen = tmux(socket, "capture-pane", "-pe", "-t", "demo").rstrip("\n")
                plain = re.sub(r"\x1b\[[0-9;]*m", "", screen)
                if not frames or frames[-1][1] != screen:
                    frames.append((time.monotonic() - began, screen))
                if answers and answers[0][0] in plain:
                    time.sleep(1.2)
                    tmux(socket, "send-keys", "-t", "demo", answers.pop(0)[1], "Enter")
                if "Your own agent" in plain:
                    return frames
                if time.monotonic() - began > 120:
                    raise SystemExit("the demo did not end")
                time.sleep(POLL_SECONDS)
        finally:
            tmux(socket, "kill-server")


def styled_line(line, y):
    """Returns a line as text elements, one for each style."""
    out, style, column = [], "", 0
    for part in re.split(r"(\x1b\[[0-9;]*m)", line):
        if part.startswith("\x1b["):
            for code in part[2:-1].split(";"):
                if code in ("", "0"):
                    style = ""
                elif code == "1":
                    style += "font-weight:bold;"
                elif code == "2":
                    style += "opacity:.6;"
                elif code in COLOURS:
                    style += f"fill:{COLOURS[code]};"
        elif part.strip():
            lead = len(part) - len(part.lstrip(" "))
            x = 12 + (column + lead) * LETTER_WIDTH
            attribute = f' style="{style}"' if style else ""
            out.append(f'<text x="{x:.1f}" y="{y}"{attribute}>{html.escape(part.strip(" "))}</text>')
        if not part.startswith("\x1b["):
            column += len(part)
    return "".join(out)


def render(frames):
    spans = [min(after - now, MAX_FRAME_SECONDS) for (now, _), (after, _) in zip(frames, frames[1:])]
    spans.append(LAST_FRAME_SECONDS)
    total, start, groups, rules = sum(spans), 0.0, [], []
    for number, ((_, screen), span) in enumerate(zip(frames, spans)):
        lines = "".join(styled_line(line, 24 + row * LINE_HEIGHT) for row, line in enumerate(screen.split("\n")))
        begin, end = 100 * start / total, 100 * (start + span) / total
        steps = f"0%,{begin:.3f}%{{visibility:hidden}}{begin + 0.001:.3f}%,{end:.3f}%{{visibility:visible}}"
        after = "" if number == len(spans) - 1 else f"{end + 0.001:.3f}%,100%{{visibility:hidden}}"
        rules.append(f"@keyframes f{number}{{{steps}{after}}}#f{number}{{animation:f{number} {total:.1f}s step-end infinite}}")
        groups.append(f'<g id="f{number}">{lines}</g>')
        start += span
    width, height = round(24 + COLUMNS * LETTER_WIDTH), 24 + ROWS * LINE_HEIGHT
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" width="{width}" role="img" '
        'aria-label="The demo: a payment, an approval, a crash, and a resume that pays nothing twice">'
        "<style>text{font:14px ui-monospace,Menlo,Consolas,monospace;fill:#d5dce3;white-space:pre}"
        f"g{{visibility:hidden}}{''.join(rules)}</style>"
        f'<rect width="100%" height="100%" rx="8" fill="#1c2128"/>{"".join(groups)}</svg>\n'
    )


if __name__ == "__main__":
    with open(sys.argv[2], "w", encoding="utf-8") as picture:
        picture.write(render(record(os.path.abspath(sys.argv[1]))))
