"""Devices for ``sol.deploy``: ``sol.device.x86``, or a pair with an instruction set, ``(sol.device.x86, "avx2")``."""

x86 = "x86"  # avx512, avx2
arm64 = "arm64"  # neon
c = "c"  # any processor: portable C
