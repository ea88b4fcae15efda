"""Makes retrieval sets in the layout of BEIR from the files of a documentation package.

    make_sets.py FOLDER_OF_PACKAGE OUTPUT_FOLDER [LANGUAGE]

Three kinds of queries, each with one relevant document, from which the query's own text is taken out:
  headings   a heading finds the section under it (HTML)
  sentences  the first sentence of a section finds the rest of the section (HTML)
  purposes   the description in a manual page's NAME section finds the rest of the page (man pages)

LANGUAGE selects the files of packages with several languages: those whose name ends in `.LANGUAGE.html`, or that lie
in a folder of that name. The choice of documents and queries depends on a digest of their text alone.
"""

import gzip
import hashlib
import html.parser
import json
import pathlib
import re
import sys

MOST_DOCUMENTS = 3000
MOST_QUERIES = 300
BLOCKS = {"p", "li", "dd", "dt", "tr", "div", "pre", "td", "th", "table", "ul", "ol", "dl", "br", "section", "article"}
SKIPPED = {"script", "style", "nav", "head", "footer"}


def digest(text):
    return hashlib.sha256(text.encode()).hexdigest()


class Sections(html.parser.HTMLParser):
    """Splits a page into sections: pairs of a heading and the text under it."""

    def __init__(self):
        super().__init__()
        self.sections, self.heading, self.body, self.depth, self.in_heading = [], "", [], 0, False

    def handle_starttag(self, tag, attrs):
        if tag in SKIPPED:
            self.depth += 1
        elif re.fullmatch("h[1-6]", tag):
            self.finish()
            self.in_heading, self.heading = True, ""
        elif tag in BLOCKS:
            self.body.append("\n")

    def handle_endtag(self, tag):
        if tag in SKIPPED:
            self.depth = max(0, self.depth - 1)
        elif re.fullmatch("h[1-6]", tag):
            self.in_heading = False
        elif tag in BLOCKS:
            self.body.append("\n")

    def handle_data(self, data):
        if self.depth == 0:
            if self.in_heading:
                self.heading += data
            else:
                self.body.append(data)

    def finish(self):
        lines = [" ".join(line.split()) for line in "".join(self.body).split("\n")]
        heading = " ".join(self.heading.replace("¶", " ").replace("#", " ").split())
        heading = re.sub(r"^(?:[A-Z]?[\d.]+|Chapter \d+)[.:]?\s+", "", heading)
        self.sections.append((heading, "\n".join(line for line in lines if line)))
        self.body, self.heading = [], ""


def read(path):
    data = gzip.open(path).read() if path.suffix == ".gz" else path.read_bytes()
    return data.decode("utf-8", "replace")


def is_question(text):
    """Tells headings that say something from `Notes` and `3.2`."""
    unspaced = len(re.findall("[\u0e00-\u0eff\u3040-\u30ff\u3400-\u9fff\uac00-\ud7af]", text))
    return 8 <= len(text) <= 300 and (len(text.split()) >= 2 or unspaced >= 5) or unspaced >= 5


def sentences(text):
    found = re.match(r"(.{20,300}?[.!?。！？؟।])(?:\s|(?<=[。！？]))(.+)", text.split("\n")[0] + "\n" + "\n".join(text.split("\n")[1:]), re.S)
    return (found.group(1), found.group(2)) if found and "\n" not in found.group(1) else None


def manual_page(text):
    """The description and the other text of a manual page in roff."""
    section, purpose, body = "", [], []
    for line in text.split("\n"):
        if line.startswith(('.\\"', "'\\\"")):
            continue
        heading = re.match(r'\.S[Hh]\s+"?([^"]+)', line)
        if heading:
            section = heading.group(1).strip()
            first = not body and not purpose
            in_name = first
            continue
        line = re.sub(r"^\.[A-Za-z]+ ?", "", line)
        line = re.sub(r"\\f.|\\s[+-]?\d|\\&|\\\||\\\^|\\/|\\%|\\c", "", line)
        line = line.replace("\\-", "-").replace("\\(em", "—").replace("\\(bu", "•").replace("\\e", "\\").replace("\\ ", " ")
        line = re.sub(r"\\\[?\(?[a-z]{2}\]?|\\\*\S", "", line).strip().strip('"')
        if line and section:
            (purpose if in_name else body).append(line)
    name = " ".join(purpose)
    split = re.split(r"\s[-—–]+\s", name, maxsplit=1)
    return (split[1] if len(split) == 2 else "", "\n".join(body))


def write(folder, documents, queries):
    """Writes a set; documents are texts by id, queries pairs of a text and the id of its document."""
    wanted = {}
    for text, document in queries:
        wanted.setdefault(" ".join(text.lower().split()), []).append((text, document))
    # A query that several documents answer has no single right answer.
    single = [several[0] for several in wanted.values() if len(several) == 1 and is_question(several[0][0])]
    keep = sorted(documents, key=lambda name: digest(documents[name]))[:MOST_DOCUMENTS]
    kept = set(keep)
    chosen = sorted((pair for pair in single if pair[1] in kept), key=lambda pair: digest(pair[0] + "q"))[:MOST_QUERIES]
    if len(chosen) < 50:
        return
    (folder / "qrels").mkdir(parents=True, exist_ok=True)
    with open(folder / "corpus.jsonl", "w") as out:
        for name in keep:
            out.write(json.dumps({"_id": name, "title": "", "text": documents[name]}) + "\n")
    with open(folder / "queries.jsonl", "w") as out, open(folder / "qrels/test.tsv", "w") as grades:
        grades.write("query-id\tcorpus-id\tscore\n")
        for at, (text, document) in enumerate(chosen):
            out.write(json.dumps({"_id": f"q{at}", "text": text}) + "\n")
            grades.write(f"q{at}\t{document}\t1\n")
    print(f"{folder.name}: {len(keep)} documents, {len(chosen)} queries")


def main():
    package, output = pathlib.Path(sys.argv[1]), pathlib.Path(sys.argv[2])
    language = sys.argv[3] if len(sys.argv) > 3 else None
    name = package.name + (f"-{language}" if language else "")
    headings, rests, by_heading, by_sentence = {}, {}, [], []
    pages, by_purpose = {}, []
    seen = set()
    for path in sorted(package.rglob("*")):
        if path.is_symlink() or not path.is_file():
            continue
        if "/man/" in str(path) and path.suffix == ".gz":
            purpose, body = manual_page(read(path))
            if purpose and len(body) > 200 and digest(body) not in seen:
                seen.add(digest(body))
                key = f"{path.parent.name}/{path.name}"
                pages[digest(key)[:12]] = body
                by_purpose.append((purpose, digest(key)[:12]))
            continue
        if not re.search(r"\.x?html?(\.gz)?$", path.name):
            continue
        if language and not (f".{language}." in path.name or f"/{language}/" in str(path)):
            continue
        splitter = Sections()
        try:
            splitter.feed(read(path))
            splitter.finish()
        except (AssertionError, OSError):
            continue
        for heading, body in splitter.sections:
            if len(body) < 200 or digest(body) in seen:
                continue
            seen.add(digest(body))
            key = digest(f"{path}{heading}{body}")[:12]
            headings[key] = body
            by_heading.append((heading, key))
            split = sentences(body)
            if split and len(split[1]) > 150:
                rests[key] = split[1]
                by_sentence.append((split[0], key))
    if headings:
        write(output / f"{name}-headings", headings, by_heading)
        write(output / f"{name}-sentences", rests, by_sentence)
    if pages:
        write(output / f"{name}-purposes", pages, by_purpose)


main()
