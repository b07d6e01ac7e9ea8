import os
import sys
from pathlib import Path

import pytest
import torch
from deploy_net import Net


@pytest.fixture(autouse=True, scope="session")
def keep_objects(tmp_path_factory):
    """Libraries with the same kernels are compiled once (kept_cc.py): that takes most of these tests' time."""
    if os.environ.get("SOL_CC"):
        yield
        return
    folder = tmp_path_factory.mktemp("objects")
    cc = folder / "cc"
    script = Path(__file__).with_name("kept_cc.py")
    cc.write_text(f'#!/bin/sh\nexec "{sys.executable}" "{script}" "$@"\n')
    cc.chmod(0o755)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("KEPT_OBJECTS", str(folder))
        patch.setenv("SOL_CC", str(cc))
        patch.setenv("CC", str(cc))
        yield


@pytest.fixture(scope="module")
def net():
    torch.manual_seed(5)
    model = Net()
    for p in model.buffers():
        if p.dtype == torch.float32:
            p.copy_(torch.rand_like(p) + 0.5)
    return model.eval()
