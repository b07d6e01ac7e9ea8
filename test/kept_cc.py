"""A C compiler that keeps what it compiles, for tests that deploy equal sources again and again: kept_cc.py WORD...

$SOL_CC of tests that deploy. The words are those of cc. For an object of C sources alone (-r), each source's own object is copied if the
same compiler made one before of the same preprocessed source with the same flags: of a deployed library, only what was generated differs
between networks. Everything else is passed on to cc. $KEPT_OBJECTS is the folder of the objects.
"""

import functools
import hashlib
import os
import subprocess
import sys
import tempfile
from pathlib import Path


def preprocess(flags, source):
    """Returns the source behind the preprocessor, without the names of files and their folders; None: cc refuses it."""
    run = subprocess.run(
        ["cc", "-E", "-P", *flags, source],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
    )
    return run.stdout if run.returncode == 0 else None


@functools.cache
def ask_version():
    return subprocess.run(["cc", "--version"], stdout=subprocess.PIPE, check=True).stdout


def find_kept(flags, text):
    """Returns the path of the object that is kept for a preprocessed source."""
    words = [flag for flag in flags if flag.startswith("-") and not flag.startswith("-I")]
    key = hashlib.sha256(" ".join(words).encode() + b"\0" + ask_version() + text).hexdigest()
    return Path(os.environ["KEPT_OBJECTS"]) / f"{key}.o"


def compile_source(flags, source, folder, number):
    """Returns the path of the source's object, which is kept or in `folder`; None: cc refuses the source."""
    text = preprocess(flags, source)
    if text is None:
        return None
    depends = b".incbin" in text  # on a further file, so it is not kept
    out = folder / f"{number}.o" if depends else find_kept(flags, text)
    if not out.exists():
        part = out.with_suffix(f".{os.getpid()}")
        made = subprocess.run(["cc", *flags, "-c", source, "-o", part], stderr=subprocess.DEVNULL)
        if made.returncode:
            return None
        part.rename(out)
    return out


def main(words):
    at = words.index("-o") if "-r" in words and "-o" in words else len(words)
    rest = words[:at] + words[at + 2 :]
    sources = [word for word in rest if word.endswith(".c")]
    # The preprocessor shows nothing of objects.
    if at == len(words) or any(word.endswith((".o", ".a")) for word in rest):
        os.execvp("cc", ["cc", *words])
    flags = [word for word in rest if word not in (*sources, "-r", "-nostdlib")]
    with tempfile.TemporaryDirectory() as folder:
        objects = [compile_source(flags, s, Path(folder), i) for i, s in enumerate(sources)]
        if None not in objects:
            join = ["cc", "-r", "-nostdlib", *objects, "-o", words[at + 1]]
            return subprocess.run(join).returncode
    os.execvp("cc", ["cc", *words])  # tells what is wrong


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
