"""Reads the C source of a custom layer into one text that contains the files that it includes by quotes, and SOL's own headers.

So the text has all that belongs to the layer: the cache of compiled kernels notices changes in any of its files, and a deployed
library needs only this text. #line directives keep the names and lines of files in the compiler's messages. Headers in angle brackets
are the compiler's, except <sol/...>.
"""

import os
import re

from sol import _core

INCLUDE = re.compile(r'^[ \t]*#[ \t]*include[ \t]*(?:"([^"\n]+)"|<(sol/[^>\n]+)>)')
ONCE = re.compile(r"^[ \t]*#[ \t]*pragma[ \t]+once\b", re.M)


def read_source(name, source):
    """Returns the text of a C file, or of C text with more than one line. Raises OSError or TypeError."""
    if isinstance(source, str) and "\n" in source:
        return "".join(_Reader().inline(source, os.getcwd(), f"{name}.c", ()))
    if not isinstance(source, (str, os.PathLike)):
        raise TypeError(f"custom layer {name}: its source is {source!r:.60}, not a path or C text")
    return "".join(_Reader().read(os.path.abspath(os.fspath(source)), ()))


class _Reader:
    def __init__(self):
        self._once = set()  # paths of files with #pragma once

    def read(self, path, stack):
        """Yields the lines of a file. ``stack``: the paths of the files that include it."""
        with open(path, encoding="utf-8", errors="replace") as file:
            text = file.read()
        if ONCE.search(text):
            self._once.add(path)
        yield from self.inline(text, os.path.dirname(path), os.path.basename(path), (*stack, path))

    def inline(self, text, folder, label, stack):
        label = label.replace("\\", "/").replace('"', "'").replace("\n", " ")
        yield f'#line 1 "{label}"\n'
        for i, line in enumerate(text.splitlines()):
            path = self._find(line, folder)
            # A file that includes itself again, by way of others, has a guard: it is empty there.
            if path is None:
                yield line + "\n"
            elif path not in stack and path not in self._once:
                yield from self.read(path, stack)
                yield f'#line {i + 2} "{label}"\n'
            else:
                yield "\n"

    def _find(self, line, folder):
        """Returns the path of the file that a line includes, or None if the compiler is to find it."""
        match = INCLUDE.match(line)
        if not match:
            return None
        own = os.path.join(os.path.dirname(_core.__file__), "include")
        path = os.path.join(folder, match[1]) if match[1] else os.path.join(own, match[2])
        path = os.path.realpath(path)
        return path if os.path.isfile(path) else None
