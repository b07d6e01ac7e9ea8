"""DistributedDataParallel over gloo: two processes that train through SOL, as torchrun starts them."""

import os
import subprocess
import sys
from pathlib import Path

import distributed_net
import pytest
import torch
import torch.distributed as dist

needs_gloo = pytest.mark.skipif(
    not (dist.is_available() and dist.is_gloo_available()), reason="this PyTorch has no gloo"
)


def run(kind, path):
    script = Path(__file__).with_name("distributed_net.py")
    argv = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc_per_node", "2"]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    return subprocess.run(
        [*argv, script, kind, path], env=environment, capture_output=True, text=True, timeout=600
    )


def train(kind, path):
    result = run(kind, path)
    assert result.returncode == 0, result.stderr
    return torch.load(path)


def assert_close(found, expected):
    assert found["losses"] == pytest.approx(expected["losses"], rel=1e-4, abs=1e-5)
    for name, tensor in expected["state"].items():
        assert torch.allclose(found["state"][name], tensor, rtol=1e-3, atol=1e-4), name


@needs_gloo
def test_net_with_batch_norm_equals_pytorch(tmp_path):
    found = train("sol-norm", tmp_path / "sol.pt")
    assert not found["reasons"]
    assert_close(found, train("eager-norm", tmp_path / "eager.pt"))


@needs_gloo
def test_net_equals_one_process_on_the_joined_batch(tmp_path):
    found = train("sol", tmp_path / "sol.pt")
    alone = distributed_net.make_net(False)
    distributed_net.train(alone, 0, 2 * distributed_net.BATCH)
    assert not found["reasons"]
    for name, tensor in alone.state_dict().items():
        assert torch.allclose(found["state"][name], tensor, rtol=1e-3, atol=1e-4), name


@needs_gloo
def test_killed_process_is_reported_as_torch_reports_it(tmp_path):
    result = run("killed", tmp_path / "none.pt")
    assert result.returncode != 0
    assert "Signal 9 (SIGKILL)" in result.stderr
