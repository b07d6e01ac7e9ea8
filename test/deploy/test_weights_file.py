"""Weights files: any file that differs from the right one is refused with a message."""

import ctypes
import os
import socket
import threading

import numpy as np
import pytest
from deploy_net import build_portable, close, example, load

import sol.pytorch as sol

HEAD = 4096


@pytest.fixture(scope="module", params=["shared", "portable"])
def deployed(net, request, tmp_path_factory):
    """(a library that has not opened its weights, the path of the right file)."""
    folder = tmp_path_factory.mktemp("net")
    options = {"target": sol.deployment.c_source} if request.param == "portable" else {}
    sol.deploy(net, [example()], lib_name="Net", path=folder, weights="file", **options)
    library = build_portable(folder) if options else load(folder)
    return library, folder / "Net.weights"


def refuse(library, path):
    """Opens the file and returns the error message. If the call never returns, the test fails instead of hanging."""
    found = []

    def call():
        context = ctypes.c_void_p(1)
        code = library.Net_open(os.fsencode(path), ctypes.byref(context))
        found.append((code, context.value, library.Net_error()))

    thread = threading.Thread(target=call, daemon=True)
    thread.start()
    thread.join(20)
    assert found, f"{path} is waited for"
    code, context, message = found[0]
    assert code == 1 and context is None and b"weights" in message
    return message


def flip(data, *places):
    """`data` with inverted bits; `places`: (byte, mask)."""
    data = bytearray(data)
    for at, mask in places:
        data[at] ^= mask
    return bytes(data)


def test_damaged(deployed, tmp_path):
    library, good = deployed
    data = good.read_bytes()
    end = len(data) - 1
    random = np.random.default_rng(0).integers(HEAD, end, 40)
    cases = [flip(data, (int(at), 1 << int(at) % 8)) for at in random]
    cases += [flip(data, (at, 1)) for at in (HEAD, end, HEAD - 1, 100, 24, 16, 8, 0)]
    # Two inverted signs, which are added to the same lane of the hash, or to two lanes.
    cases += [flip(data, (HEAD + 7, 0x80), (HEAD + 7 + step, 0x80)) for step in (4, 8, 16, 32, 64)]
    swapped = (
        data[:HEAD] + data[HEAD + 64 : HEAD + 128] + data[HEAD : HEAD + 64] + data[HEAD + 128 :]
    )
    cases += [swapped, data[:HEAD] + bytes(end + 1 - HEAD), data + b"\0", data + data[HEAD:]]
    cases += [data[:-n] for n in (1, 4, 64, 4096)] + [data[:n] for n in (0, 1, 24, HEAD - 1, HEAD)]
    for i, content in enumerate(cases):
        assert content != data
        (tmp_path / "bad").write_bytes(content)
        assert refuse(library, tmp_path / "bad"), i


def test_of_another_network(deployed, net, tmp_path):
    library, _ = deployed
    sol.deploy(
        net, [example()], lib_name="Other", path=tmp_path, weights="file",
        target=sol.deployment.c_source,
    )  # fmt: skip
    data = (tmp_path / "Other.weights").read_bytes()
    (tmp_path / "other").write_bytes(flip(data, (9, 1)))
    refuse(library, tmp_path / "other")


def test_no_regular_file(deployed, tmp_path):
    library, _ = deployed
    os.mkfifo(tmp_path / "pipe")
    os.mkdir(tmp_path / "folder")
    server = socket.socket(socket.AF_UNIX)
    server.bind(os.fspath(tmp_path / "socket"))
    (tmp_path / "loop").symlink_to("loop")
    for name in (
        "pipe",
        "folder",
        "socket",
        "loop",
        "nothing",
        "/dev/zero",
        "/dev/null",
        "/dev/tty",
    ):
        refuse(library, tmp_path / name)
    server.close()


def test_the_good_one_after_all(deployed, net):
    """The right file is accepted, also after refusals. It is read once; later changes of the file have no effect."""
    library, good = deployed
    context = ctypes.c_void_p()
    x, y = example(), np.empty(10, np.float32)
    pointers = [(ctypes.c_void_p * 1)(address) for address in (x.data_ptr(), y.ctypes.data)]
    assert library.Net_open(os.fsencode(good), ctypes.byref(context)) == 0
    good.rename(good.with_name("gone"))
    assert library.Net_open(b"/nowhere", ctypes.byref(context)) == 0
    assert library.Net_run(context, None, *pointers) == 0
    close(y, net(x))
