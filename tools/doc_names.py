"""Checks that the names in documents and comments exist: doc_names.py DOCUMENT...

Documents, inside of `backticks`: a word with an underscore must occur in a source. Files *.c, *.h, *.py, *.def, and folders
with a / at the end, must exist, by path or by the end of a path. For "`NAME` in `FILE`", "`NAME` of `FILE`", "`NAME`,
`OTHER` (`FILE`)" and "`FILE` (`NAME`)", the names must occur in that file. Fenced blocks are not checked.

Comments of C sources: files must exist, and for "NAME in FILE" and "NAME (FILE)", the names must occur in that file.

Headers: a function that is declared after a line "/* ---- FILE ---- */" or "/* ---- FILE: text ---- */" must occur in that
file.
"""

import re
import sys

from sources import ROOT, find, read

# Placeholders, and names of users' files in examples: these are not checked.
PLACEHOLDER = re.compile(r"[*A-Z<>…]|\.\.\.|^net\.py$|^kernels\.c$|\btmp-")
FILE = r"[\w./-]+\.(?:c|h|py|def)"
NAME = r"(?:struct |enum )?[A-Za-z_]\w*(?:\(\))?"
ITEM = rf"\**`{NAME}`\**"
LIST = rf"{ITEM}(?:(?:,? and|,? or|,)\s+{ITEM})*"
PLACES = [  # patterns of names together with the file that has them
    re.compile(rf"(?P<names>{LIST})\s+(?:in|of|from)\s+`(?P<file>{FILE})`"),
    re.compile(rf"(?P<names>{LIST})\s+\(`(?P<file>{FILE})`"),
    re.compile(rf"`(?P<file>{FILE})`\s+\((?P<names>{LIST})[,;)]"),
]
COMMENT = re.compile(r"/\*.*?\*/", re.S)
COMMENT_FILE = re.compile(rf"(?<![\w./*<>-]){FILE}\b(?![:*])")
COMMENT_PLACE = re.compile(rf"\b(?P<names>\w+_\w+)(?:,? in| \()\s*(?P<file>{FILE})\b(?!:)")
SECTION = re.compile(
    rf"/\* ---- (?P<files>{FILE}(?:, {FILE})*)(?P<text>[^*]*\*/.*?)(?=/\* ---- |\Z)", re.S
)
DECLARED = re.compile(r"^(?!typedef|static)[a-z][\w *]*?\b(\w+)\([^;{}]*\)\s*(?:;|__attr)", re.M)


class Sources:
    """All sources, and all words that occur in them."""

    def __init__(self):
        self.files = find(".c", ".h", ".py", ".def", ".sol", ".txt")
        self.words = set(re.findall(r"\w+", (ROOT / "Makefile").read_text()))
        for path in self.files:
            self.words.update(re.findall(r"\w+", read(path)))

    def resolve(self, name):
        """Returns all files that a name may mean: by path from the root, else by the end of a path."""
        if (ROOT / name).exists():
            return [ROOT / name]
        return [ROOT / p for p in self.files if f"/{p}".endswith("/" + name)]

    def has_file(self, name):
        if not name.endswith("/"):
            return bool(self.resolve(name))
        return (ROOT / name).exists() or any(f"/{p}".rfind("/" + name) >= 0 for p in self.files)

    def has_word(self, name, word):
        """Whether a word occurs in a file of that name. True for folders and missing files, which other checks report."""
        paths = [p for p in self.resolve(name) if p.is_file()]
        return not paths or any(re.search(rf"\b{word}\b", p.read_text("utf-8")) for p in paths)


def check_places(where, text, places, sources):
    """Yields a line per name that does not occur in the file beside it; ``places``: patterns."""
    for pattern in places:
        for match in pattern.finditer(text):
            for name in re.findall(r"\w+", match["names"]):
                if name in ("struct", "enum", "and", "or") or sources.has_word(match["file"], name):
                    continue
                yield f"{where}: `{name}` is not in {match['file']}"


def check_spans(where, text, sources):
    """Yields a line per missing file or name in the backticks of a document."""
    for span in re.findall(r"`([^`\n]+)`", text):
        for token in re.findall(r"[\w./*<>-]+", span):
            if re.fullmatch(rf"{FILE}|[\w./-]+/", token):
                if not PLACEHOLDER.search(token) and not sources.has_file(token):
                    yield f"{where}: `{token}` is no file here"
            elif (
                re.fullmatch(r"\w*[a-zA-Z]\w*", token)
                and "_" in token.strip("_")
                and token not in sources.words
            ):
                yield f"{where}: `{token}` is nowhere in the sources"


def check_document(where, text, sources):
    """Yields a line per error in a document."""
    text = re.sub(r"```.*?```", "", text, flags=re.S)
    yield from check_spans(where, text, sources)
    yield from check_places(where, text, PLACES, sources)


def check_comments(where, text, sources):
    """Yields a line per error in the comments of a C source."""
    for comment in COMMENT.findall(text):
        plain = re.sub(r"\n\s*\*", "\n ", comment)
        for name in COMMENT_FILE.findall(plain):
            if not PLACEHOLDER.search(name) and not sources.has_file(name):
                yield f"{where}: a comment names {name}, which is no file here"
        yield from check_places(where, plain, [COMMENT_PLACE], sources)


def check_sections(where, text, sources):
    """Yields a line per function that is declared in the wrong section of a header."""
    for section in SECTION.finditer(text):
        files = section["files"].split(", ")
        for name in DECLARED.findall(COMMENT.sub("", "/*" + section["text"])):
            if not any(sources.has_word(file, name) for file in files):
                yield f"{where}: {name} is not in {section['files']}"


def main():
    sources = Sources()
    errors = []
    for name in sys.argv[1:]:
        errors += check_document(name, (ROOT / name).read_text("utf-8"), sources)
    for path in sources.files:
        if path.suffix in (".c", ".h", ".def"):
            errors += check_comments(path, read(path), sources)
        if path.suffix == ".h":
            errors += check_sections(path, read(path), sources)
    print(*errors, sep="\n", end="\n" if errors else "")
    return 1 if errors else 0


if __name__ == "__main__":
    sys.exit(main())
