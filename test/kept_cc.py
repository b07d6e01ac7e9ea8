"""A C compiler that keeps what it compiles, for tests that deploy equal sources again and again: kept_cc.py WORD...

$SOL_CC of tests that deploy. The words are those of cc. An object of C sources alone (-r) is copied if the same compiler made one before of the
same preprocessed sources with the same flags; everything else is passed on to cc. $KEPT_OBJECTS is the folder of the objects.
"""

import hashlib
import os
import shutil
import subprocess
import sys
from pathlib import Path


def preprocess(words):
    """Returns the sources behind the preprocessor, without the names of files and their folders, and the compiler's version; None: cc
    refuses them."""
    run = subprocess.run(
        ["cc", "-E", "-P", *(word for word in words if word not in ("-r", "-nostdlib"))],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
    )
    version = subprocess.run(["cc", "--version"], stdout=subprocess.PIPE, check=True).stdout
    return version + run.stdout if run.returncode == 0 else None


def main(words):
    at = words.index("-o") if "-r" in words and "-o" in words else len(words)
    rest = words[:at] + words[at + 2 :]
    # The preprocessor shows nothing of objects.
    links = any(word.endswith((".o", ".a")) for word in rest)
    text = preprocess(rest) if at < len(words) and not links else None
    if text is None or b".incbin" in text:  # that depends on a further file
        os.execvp("cc", ["cc", *words])
    flags = [word for word in rest if word.startswith("-") and not word.startswith("-I")]
    key = hashlib.sha256(" ".join(flags).encode() + b"\0" + text).hexdigest()
    kept, out = Path(os.environ["KEPT_OBJECTS"]) / f"{key}.o", words[at + 1]
    if not kept.exists():
        part = kept.with_suffix(f".{os.getpid()}")
        code = subprocess.run(["cc", *rest, "-o", part]).returncode
        if code:
            return code
        part.rename(kept)
    shutil.copy(kept, out)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
