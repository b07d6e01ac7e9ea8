"""Builds libsol with make and links it into one extension for all Python versions from 3.10 on."""

import os
import subprocess
from glob import glob

from setuptools import Extension, setup
from setuptools.command.build_ext import build_ext
from setuptools.command.build_py import build_py

# What a source of custom layers includes; the package has copies, as sources are compiled where it is installed.
HEADERS = "include/sol/custom.h", "include/sol/run.h"


class BuildWithMake(build_ext):
    """Runs ``make lib`` before the extension is compiled: make builds libsol, setuptools only the extension."""

    def run(self):
        subprocess.run(["make", "-s", f"-j{os.cpu_count()}", "lib"], check=True)
        super().run()


class BuildWithHeaders(build_py):
    """Copies HEADERS into the package."""

    def run(self):
        super().run()
        for header in HEADERS:
            target = os.path.join(self.build_lib, "sol", header)
            self.mkpath(os.path.dirname(target))
            self.copy_file(header, target)


core = Extension(
    "sol._core",
    sorted(glob("python/sol/_*.c")),
    depends=["python/sol/_core.h"],
    include_dirs=["include"],
    extra_objects=["build/release/libsol.a"],
    extra_compile_args=["-std=gnu11", "-fvisibility=hidden"],
    extra_link_args=["-Wl,--exclude-libs,ALL", "-Wl,-z,nodelete"],  # nodelete: pool threads run on
    libraries=["dl", "m", "pthread"],
    py_limited_api=True,
)
setup(
    ext_modules=[core],
    cmdclass={"build_ext": BuildWithMake, "build_py": BuildWithHeaders},
    options={"bdist_wheel": {"py_limited_api": "cp310"}},
)
