"""``python -m sol.onnx program.py arguments``, ``python -m sol.onnx -m module arguments``: runs a program that was written for ONNX
Runtime with SOL."""

import os
import runpy
import sys

from sol.onnx.replace import replace_onnxruntime


def main():
    arguments = sys.argv[1:]
    is_module = arguments[:1] == ["-m"]
    arguments = arguments[is_module:]
    if not arguments or arguments[0].startswith("-"):
        sys.exit("usage: python -m sol.onnx program.py [arguments], or -m module [arguments]")
    replace_onnxruntime()
    sys.argv = arguments
    if is_module:
        runpy.run_module(arguments[0], run_name="__main__", alter_sys=True)
    else:
        sys.path[0] = os.path.dirname(os.path.abspath(arguments[0]))
        runpy.run_path(arguments[0], run_name="__main__")


main()
