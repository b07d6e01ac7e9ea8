"""Checks that what documents name still exists: doc_names.py FILE...

In `backticks`: words with an underscore must occur in a source, and files *.c, *.h, *.py, *.def and folders
ending in / must exist (by path, or by name anywhere in the sources). Fenced blocks are examples: not checked.
"""

import re
import sys

from sources import ROOT, find, read

PLACEHOLDER = re.compile(r"[*A-Z<>…]|\.\.\.")


def check_file(name, files):
    names = {str(p) for p in files} | {p.name for p in files}
    return (
        (ROOT / name).exists() or name in names or any(str(p).endswith("/" + name) for p in files)
    )


def check_document(name, words, files):
    text = re.sub(r"```.*?```", "", (ROOT / name).read_text(encoding="utf-8"), flags=re.S)
    for span in re.findall(r"`([^`\n]+)`", text):
        for token in re.findall(r"[\w./*<>-]+", span):
            if re.fullmatch(r"[\w./-]+\.(c|h|py|def)|[\w./-]+/", token):
                if not PLACEHOLDER.search(token) and not check_file(token, files):
                    yield f"{name}: `{token}` is no file here"
            elif (
                re.fullmatch(r"\w*[a-zA-Z]\w*", token)
                and "_" in token.strip("_")
                and token not in words
            ):
                yield f"{name}: `{token}` is nowhere in the sources"


def main():
    files = find(".c", ".h", ".py", ".def", ".sol", ".txt")
    words = set()
    for path in files:
        words.update(re.findall(r"\w+", read(path)))
    words.update(re.findall(r"\w+", (ROOT / "Makefile").read_text()))
    errors = [
        e
        for name in sys.argv[1:]
        if (ROOT / name).exists()
        for e in check_document(name, words, files)
    ]
    print(*errors, sep="\n", end="\n" if errors else "")
    return 1 if errors else 0


if __name__ == "__main__":
    sys.exit(main())
