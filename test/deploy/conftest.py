import pytest
import torch
from deploy_net import Net


@pytest.fixture(autouse=True, scope="session")
def keep_all_objects(keeping):
    with pytest.MonkeyPatch.context() as patch:
        for name, value in keeping.items():
            patch.setenv(name, value)
        yield


@pytest.fixture(scope="module")
def net():
    torch.manual_seed(5)
    model = Net()
    for p in model.buffers():
        if p.dtype == torch.float32:
            p.copy_(torch.rand_like(p) + 0.5)
    return model.eval()
