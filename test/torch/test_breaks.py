"""Forwards that no single graph can replace: SOL runs them in several graphs, with Python between them."""

import collections
import copy
import gc
import math
import subprocess
import sys
import weakref

import pytest
import torch
from conftest import assert_equal, run_in_threads
from torch import nn
from torch.nn import functional

import sol.pytorch as sol
from sol.pytorch import dynamo, dynamo_piece


class Blocks(nn.Module):
    """Two convolutions with something between them that needs Python."""

    def __init__(self, between=None, width=4):
        super().__init__()
        self.a, self.b = nn.Conv2d(3, width, 3, padding=1), nn.Conv2d(width, 2, 3, padding=1)
        self.norm = nn.BatchNorm2d(width)
        self.between = between or add_one_if_positive

    def forward(self, x):
        return self.b(self.between(torch.relu(self.norm(self.a(x)))))


def add_one_if_positive(y):
    return y + 1 if y.mean() > 0.2 else y * 2


def say(y):
    print("between")
    return y


def scale_by_item(y):
    return y * (1 + y.max().item())


def mean_of_rows(y):
    rows = [row for row in y.flatten(2).mean(1) if row.sum() > 0]
    return y + len(rows)


BREAKS = {
    "print": say,
    "item": scale_by_item,
    "condition": add_one_if_positive,
    "list": mean_of_rows,
}


def build(between=None, width=4):
    """A network of which no kernel of another test is in Dynamo's cache."""
    torch._dynamo.reset()
    model = Blocks(between, width).eval()
    with torch.no_grad():
        model.norm.running_mean.uniform_(-0.5, 0.5)
        model.norm.running_var.uniform_(0.5, 1.5)
    return model


def compiled(model, **options):
    return torch.compile(model, backend="sol", **options)


def assert_same(fast, model, *inputs):
    """Asserts that a call gives the result of the model itself."""
    with torch.no_grad():
        assert_equal(fast(*inputs), model(*inputs))


def n_in_sol(pieces):
    return sum(piece.pays for piece in pieces)


@pytest.fixture
def pieces():
    """A function that returns the graphs of torch.compile's backend that were made since the test began."""
    known = {id(x) for x in dynamo.PROCESS.pieces}
    return lambda: [x for x in dynamo.PROCESS.pieces if id(x) not in known]


@pytest.fixture
def x():
    return torch.rand(2, 3, 8, 8)


# ---- What breaks a graph ----


@pytest.mark.parametrize("name", BREAKS)
def test_optimize(name, x):
    model = build(BREAKS[name])
    fast = sol.optimize(model, sol.input([0, 3, 8, 8]))
    for n in 2, 2, 3, 5, 1:
        assert_same(fast, model, torch.rand(n, 3, 8, 8))
    graphs = sol.graphs(fast)
    assert sum(graph.reason is None for graph in graphs) >= 2, graphs
    ends = [graph.end for graph in graphs if graph.end]
    assert all("test_breaks.py" in end.origin for end in ends), ends
    assert ends or name == "item"  # Dynamo may make a graph of an item


@pytest.mark.parametrize("name", BREAKS)
def test_torch_compile(name, x, pieces):
    model = build(BREAKS[name])
    fast = compiled(model)
    for n in 2, 2, 3, 5, 1:
        assert_same(fast, model, torch.rand(n, 3, 8, 8))
    assert n_in_sol(pieces()) >= 2


def test_python_runs_once_per_call(x, capsys):
    fast = sol.optimize(build(say), sol.input([0, 3, 8, 8]))
    assert capsys.readouterr().out == ""
    with torch.no_grad():
        for _ in range(3):
            fast(x)
    assert capsys.readouterr().out == "between\n" * 3


def test_a_graph_that_does_not_pay(x):
    """Graphs of a few operators are not compiled; if no graph pays, PyTorch runs the module as a whole."""

    class Small(nn.Module):
        def forward(self, x):
            return x * 2 if x.sum() > 0 else x + 1

    torch._dynamo.reset()
    fast = sol.optimize(Small().eval(), sol.input([0, 3, 8, 8]))
    for _ in range(3):
        assert_same(fast, vars(fast)["_original"], x)
    assert sol.graphs(fast) == []
    ((reason, n),) = sol.fallbacks(fast).items()
    assert "test_breaks.py" in reason and n == 3


def test_fullgraph():
    with pytest.raises(NotImplementedError, match="test_breaks.py"):
        sol.optimize(build(), sol.input([0, 3, 8, 8]), fullgraph=True)


def test_message(monkeypatch, x):
    lines = []
    monkeypatch.setattr("sol.log.say", lambda level, text: lines.append(text))
    fast = sol.optimize(build(say), sol.input([0, 3, 8, 8]))
    with torch.no_grad():
        fast(x)
    assert any("runs in 2 graphs, 2 of them in SOL" in line for line in lines), lines


def test_no_profile_of_several_graphs(x):
    fast = sol.optimize(build(), sol.input([0, 3, 8, 8]))
    with pytest.raises(RuntimeError, match="runs in several graphs.*test_breaks.py"):
        sol.profile(fast, x)


def test_options():
    with pytest.raises(Exception, match="takes no mode='max-autotune'"):
        compiled(build(), mode="max-autotune")(torch.rand(1, 3, 8, 8))


def test_backend_is_found_without_an_import():
    code = "import torch; print('sol' in torch._dynamo.list_backends())"
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert run.stdout == "True\n"


# ---- Weights ----


@pytest.fixture(params=["optimize", "compile"])
def fast(request):
    """A module in graphs; ``_original`` or ``_orig_mod`` is the model."""
    model = build()
    with torch.no_grad():
        model(torch.rand(1, 3, 8, 8))
    if request.param == "compile":
        return compiled(model)
    return sol.optimize(model, sol.input([0, 3, 8, 8]))


def model_of(fast):
    return vars(fast).get("_original") or fast._orig_mod


def count_packs(monkeypatch):
    """Returns a list that grows by an item each time weights are packed."""
    from sol.pytorch.plan import Plan

    packs, make = [], Plan.make_weights
    monkeypatch.setattr(
        Plan, "make_weights", lambda self, module: packs.append(0) or make(self, module)
    )
    return packs


def test_weights_are_packed_once(fast, x, monkeypatch):
    packs = count_packs(monkeypatch)
    for _ in range(4):
        assert_same(fast, model_of(fast), x)
    assert len(packs) == 2


def test_load_state_dict(fast, x):
    assert_same(fast, model_of(fast), x)
    model_of(fast).load_state_dict(Blocks().state_dict())
    assert_same(fast, model_of(fast), x)
    assert_same(fast, model_of(fast), x)


def change_value(model):
    with torch.no_grad():
        model.a.weight.mul_(-1)


def change_data(model):
    model.a.weight.data = model.a.weight.data.clone() * -1


def change_object(model):
    model.a.weight = nn.Parameter(model.a.weight.detach() * -1)


def change_buffer(model):
    model.norm.running_mean.add_(1)


def write_data(model):
    model.a.weight.data.mul_(-1)  # no version counts this; all samples change


CHANGES = change_value, change_data, change_object, change_buffer, write_data


@pytest.mark.parametrize("change", CHANGES)
def test_new_weights(fast, x, change):
    assert_same(fast, model_of(fast), x)
    change(model_of(fast))
    assert_same(fast, model_of(fast), x)


def test_training_step(fast, x):
    model = model_of(fast)
    optimizer = torch.optim.SGD(model.parameters(), 1e-3)
    for _ in range(3):
        assert_same(fast, model, x)
        optimizer.zero_grad()
        loss = fast(x).square().sum()
        expected = torch.autograd.grad(model(x).square().sum(), model.a.weight)[0]
        loss.backward()
        assert_equal(model.a.weight.grad, expected)
        optimizer.step()


def test_modes_are_counted(x, pieces):
    fast, reason = compiled(build()), "a forward-mode gradient is wanted"
    before = dynamo.PROCESS.fallbacks[reason]
    with torch.autograd.forward_ad.dual_level():
        fast(x)
    assert dynamo.PROCESS.fallbacks[reason] > before
    assert n_in_sol(pieces()) == 0


def test_train_mode(fast, x):
    model = model_of(fast)
    assert_same(fast, model, x)
    twin = copy.deepcopy(model).train()
    model.train()
    with torch.no_grad():
        for _ in range(2):
            assert_equal(fast(x), twin(x))
    assert_equal(model.norm.running_mean, twin.norm.running_mean)
    model.eval()
    assert_same(fast, model, x)


def test_dead_weights_are_freed():
    """Dynamo keeps graphs for ever; they must not keep the weights of a module that is gone."""
    model = build()
    other = Blocks().eval()
    fast, x = compiled(model), torch.rand(1, 3, 8, 8)
    assert_same(fast, model, x)
    assert_same(compiled(other), other, x)
    known = [entry for s in dynamo.PROCESS.pieces for entry in s._entries if entry.plan]
    before = sum(len(entry.packed) for entry in known)
    del fast, model
    assert sum(len(entry.packed) for entry in known) < before
    assert_same(compiled(other), other, x)


def test_a_module_is_freed(x):
    model = build()
    fast = sol.optimize(model, sol.input([0, 3, 8, 8]))
    assert_same(fast, model, x)
    assert_same(fast, model, torch.rand(3, 3, 8, 8))
    alive = weakref.ref(model.a.weight)
    del model, fast
    gc.collect()
    assert alive() is None


# ---- Results and state ----


def test_views_of_inputs_and_of_results(x, pieces):
    """Later code writes into views that a graph returned: all tensors that share memory in PyTorch see it."""

    class Views(Blocks):
        def forward(self, x):
            top, y = x[:, :, :4], self.norm(self.a(x))
            left, right = y[..., :4], y[..., 4:]
            torch._dynamo.graph_break()
            top.add_(1)
            left.mul_(3)
            return x, y, right, self.b(y), top.shape[2], None

    torch._dynamo.reset()
    model = Views().eval()
    fast = compiled(model)
    with torch.no_grad():
        got, expected = fast(x.clone()), model(x.clone())
    assert got[4:] == expected[4:]
    assert_equal(got[:4], expected[:4])
    assert got[1].data_ptr() == got[2].data_ptr() - 16
    assert n_in_sol(pieces()) == 2


def test_buffers_that_a_graph_writes(x):
    class Counting(Blocks):
        def __init__(self):
            super().__init__()
            self.register_buffer("seen", torch.zeros(4))

        def forward(self, x):
            y = self.a(x)
            self.seen.add_(y.mean((0, 2, 3)))
            return self.b(self.between(y)) + self.seen.sum()

    torch._dynamo.reset()
    model = Counting().eval()
    twin = copy.deepcopy(model)
    fast = sol.optimize(model, sol.input([0, 3, 8, 8]))
    with torch.no_grad():
        for _ in range(3):
            assert_equal(fast(x), twin(x))
            assert_equal(model.seen, twin.seen)
        model.seen.zero_(), twin.seen.zero_()
        assert_equal(fast(x), twin(x))
        model.seen = torch.ones(4)
        twin.seen = torch.ones(4)
        assert_equal(fast(x), twin(x))
        assert_equal(model.seen, twin.seen)
    assert sum(graph.reason is None for graph in sol.graphs(fast)) >= 2


def test_exceptions(fast, x):
    class Error(Exception):
        pass

    def refuse(y):
        if y.sum() > -1e9:
            raise Error("no")
        return y

    model = model_of(fast)
    assert_same(fast, model, x)
    model.between = refuse
    with torch.no_grad(), pytest.raises(Error, match="no"):
        fast(x)
    model.between = add_one_if_positive
    assert_same(fast, model, x)


@pytest.mark.parametrize("dynamic", [True, None])
def test_sizes(dynamic, pieces):
    model = build()
    fast = compiled(model, dynamic=dynamic)
    for h, w in (8, 8), (10, 6), (7, 12), (8, 8), (31, 9):
        assert_same(fast, model, torch.rand(2, 3, h, w))
    # The first sizes have graphs of their own (with dynamic=True, as rows and columns are equal); all others share graphs with
    # open sizes.
    assert 4 <= n_in_sol(pieces()) <= (4 if dynamic else 9)


def test_recompiles_are_counted():
    model = build()
    fast = sol.optimize(model, sol.input([0, 3, 0, 0]))
    assert_same(fast, model, torch.rand(2, 3, 8, 8))
    assert sol.recompiles(fast) == 0
    assert_same(fast, model, torch.rand(2, 3, 6, 9))
    assert sol.recompiles(fast) > 0


def test_numbers_that_vary(x):
    """Integers among the inputs of a graph are open sizes."""

    class Crop(Blocks):
        def forward(self, x):
            n = int(x.mean() * 0) + x.shape[2]
            y = self.a(x)
            torch._dynamo.graph_break()
            return self.b(y)[:, :, : n // 2] * (n // 3), n

    torch._dynamo.reset()
    model = Crop().eval()
    fast = compiled(model)
    for h in 8, 10, 12, 14, 9:
        assert_same(fast, model, torch.rand(2, 3, h, 8))


class Resizing(nn.Module):
    """Resizes and pads an image as detectors do: sizes follow from floats."""

    def __init__(self):
        super().__init__()
        self.a, self.b = nn.Conv2d(3, 8, 3, 2, 1), nn.Conv2d(8, 4, 3, 2, 1)
        self.side = nn.Conv2d(8, 4, 1)

    def forward(self, image):
        h, w = image.shape[1:]
        scale = min(32 / min(h, w), 48 / max(h, w))
        options = {"mode": "bilinear", "recompute_scale_factor": True, "align_corners": False}
        x = functional.interpolate((image / 0.5)[None], scale_factor=scale, **options)[0]
        rows, columns = (math.ceil(float(size) / 8) * 8 for size in x.shape[1:])
        batch = x.new_full((1, 3, rows, columns), 0)
        batch[0, :3, : x.shape[1], : x.shape[2]].copy_(x)
        y = self.a(batch).relu()
        z = self.b(y)
        sum_ = functional.interpolate(z, size=y.shape[-2:], mode="nearest") + self.side(y)
        if z.sum() > 100:
            z = z + 1
        return z * 2, sum_, (h, w), x.shape


def test_sizes_that_follow_from_floats(pieces):
    torch._dynamo.reset()
    model = Resizing().eval()
    fast = compiled(model)
    for h, w in (40, 40), (40, 56), (50, 36), (64, 64), (36, 60), (48, 40):
        x = torch.rand(3, h, w)
        with torch.no_grad():
            got, expected = fast(x), model(x)
        assert got[2:] == expected[2:]
        assert_equal(got[:2], expected[:2], 1e-4)
    heads = [piece for piece in pieces() if piece._head]
    assert heads and all(entry.sizes is None for x in heads for entry in x._entries)


def test_batch_norm_in_a_functional_form(pieces):
    """A write that another tensor sees: SOL imports the functional form of the graph, with batch norms of another name."""

    class Writing(Blocks):
        def forward(self, x):
            padded = x.new_zeros(2, 3, 10, 10)
            padded[:, :, 1:9, 1:9].copy_(x)
            return self.b(self.norm(self.a(padded)))

    torch._dynamo.reset()
    model = Writing().eval()
    fast = compiled(model)
    assert_same(fast, model, torch.rand(2, 3, 8, 8))
    assert n_in_sol(pieces()) == 1
    assert not any("batch_norm" in node.call for piece in pieces() for node in piece.hosts())


def test_one_plan_per_size(pieces):
    """Where SOL has no formula for a size, each size is compiled, up to a limit."""

    class Cropped(Blocks):
        def forward(self, x):
            y = self.a(x)
            return self.b(y[:, :, : 2 * math.isqrt(y.shape[2])])

    torch._dynamo.reset()
    model = Cropped().eval()
    fast = compiled(model, dynamic=True)
    for h in (9, 16, 25, 9):
        assert_same(fast, model, torch.rand(2, 3, h, 8))
    assert n_in_sol(pieces()) >= 1


# ---- Two networks ----


def test_two_networks_share_graphs(x, monkeypatch):
    """One class, two sets of weights: each call has its own."""
    one, two = build(), Blocks().eval()
    fast_one, fast_two = compiled(one), compiled(two)
    for _ in range(3):
        assert_same(fast_one, one, x)
        assert_same(fast_two, two, x)


def test_optimized_twice(x):
    """The second time, all kernels are in the cache."""
    model = build(width=8)
    for _ in range(2):
        fast = sol.optimize(model, sol.input([0, 3, 8, 8]))
        assert_same(fast, model, x)
    plans = [e.plan for s in breaks_of(fast).backend.pieces for e in s._entries if e.plan]
    assert plans and sum(plan.program.n_compiled for plan in plans) == 0


def breaks_of(fast):
    engine = vars(fast)["_engine"]
    return engine._state.first(engine._key).breaks


def test_deepcopy(x):
    model = build()
    fast = sol.optimize(model, sol.input([0, 3, 8, 8]))
    assert_same(fast, model, x)
    twin = copy.deepcopy(fast)
    change_value(vars(twin)["_original"])
    assert_same(twin, vars(twin)["_original"], x)
    assert_same(fast, model, x)


def test_hooks(x):
    """Dynamo does not look at hooks after it has compiled a graph; SOL's guard does."""
    model = build()
    fast = sol.optimize(model, sol.input([0, 3, 8, 8]))
    assert_same(fast, model, x)
    hook = model.b.register_forward_hook(lambda module, inputs, result: result + 1)
    assert_same(fast, model, x)
    hook.remove()
    assert_same(fast, model, x)
    model.b = nn.Conv2d(4, 6, 1)
    assert_same(fast, model, x)


def set_order(model):
    model.table.move_to_end("a")


def set_sign(model):
    model.zero = -0.0


def set_nested(model):
    model.nested[0][0] = 3.0


CHANGED = {
    "order": (lambda m, y: y * list(m.table.values())[0], set_order),
    "sign of zero": (lambda m, y: y * math.copysign(2, m.zero), set_sign),
    "list in a tuple": (lambda m, y: y * m.nested[0][0], set_nested),
    "attribute": (lambda m, y: y * m.k, lambda m: setattr(m, "k", 7.0)),
    "global": (lambda m, y: y * TABLE["k"], lambda m: TABLE.update(k=TABLE["k"] + 1)),
}
TABLE = {"k": 2.0}


@pytest.mark.parametrize("name", CHANGED)
def test_what_a_forward_reads(name, x):
    """Dynamo's guards do not notice all of these changes, SOL's do."""
    read, change = CHANGED[name]

    class Reading(Blocks):
        def forward(self, x):
            y = read(self, self.a(x))
            torch._dynamo.graph_break()
            return self.b(y)

    torch._dynamo.reset()
    model = Reading().eval()
    model.table = collections.OrderedDict(a=2.0, b=3.0)
    model.zero, model.nested, model.k = 0.0, ([2.0],), 2.0
    fast = sol.optimize(model, sol.input([0, 3, 8, 8]))
    for _ in range(2):
        assert_same(fast, model, x)
    before = breaks_of(fast)
    assert_same(fast, model, x)
    assert breaks_of(fast) is before
    change(model)
    for _ in range(2):
        assert_same(fast, model, x)
    assert sol.graphs(fast)


def test_a_forward_that_writes_attributes(x):
    """It is divided once: its own writes are no changes."""

    class Writing(Blocks):
        def forward(self, x):
            y = self.a(x)
            print(end="")
            self.last = [y.shape[1]]
            return self.b(y * self.last[0])

    torch._dynamo.reset()
    model = Writing().eval()
    fast = sol.optimize(model, sol.input([0, 3, 8, 8]))
    for _ in range(3):
        assert_same(fast, model, x)
    before = breaks_of(fast)
    for _ in range(3):
        assert_same(fast, model, x)
    assert breaks_of(fast) is before and sol.graphs(fast)


def test_threads(x):
    model = build()
    fast = sol.optimize(model, sol.input([0, 3, 8, 8]))
    results, errors = [], []

    def run():
        try:
            with torch.no_grad():
                results.append(fast(x))
        except Exception as error:
            errors.append(error)

    run_in_threads(run)
    assert not errors
    for result in results:
        assert_equal(result, model(x).detach())


# ---- A detector ----


def find_overlap(box, boxes):
    """Intersection over union of one box and others."""
    low, high = torch.maximum(box[:2], boxes[:, :2]), torch.minimum(box[2:], boxes[:, 2:])
    both = (high - low).clamp(min=0).prod(1)
    areas = (boxes[:, 2:] - boxes[:, :2]).prod(1)
    return both / (areas + (box[2:] - box[:2]).prod() - both)


def keep_best(boxes, scores, limit=0.5):
    """Greedy non-maximum suppression: the number of steps depends on the values."""
    order, kept = scores.argsort(descending=True), []
    while order.numel():
        best, order = order[0], order[1:]
        kept.append(best)
        order = order[find_overlap(boxes[best], boxes[order]) <= limit]
    return torch.stack(kept) if kept else order


class Detector(nn.Module):
    """Two scales, a head for classes and one for boxes, and suppression per image."""

    def __init__(self, classes=3):
        super().__init__()
        self.stem = nn.Sequential(nn.Conv2d(3, 8, 3, 2, 1), nn.BatchNorm2d(8), nn.ReLU())
        self.down = nn.Sequential(nn.Conv2d(8, 8, 3, 2, 1), nn.BatchNorm2d(8), nn.ReLU())
        self.classes, self.boxes = nn.Conv2d(8, classes, 3, 1, 1), nn.Conv2d(8, 4, 3, 1, 1)

    def forward(self, images):
        fine = self.stem(images)
        levels = [fine, self.down(fine)]
        scores = torch.cat([self.classes(y).sigmoid().flatten(2) for y in levels], 2)
        sides = torch.cat([self.boxes(y).exp().flatten(2) for y in levels], 2)
        centers = torch.cat([self.centers(y, images.shape[2:]) for y in levels])
        return [self.select(s, d, centers) for s, d in zip(scores, sides)]

    def centers(self, y, sizes):
        h, w = y.shape[2:]
        rows = (torch.arange(h, device=y.device) + 0.5) * (sizes[0] / h)
        columns = (torch.arange(w, device=y.device) + 0.5) * (sizes[1] / w)
        return torch.stack(torch.meshgrid(columns, rows, indexing="xy"), -1).flatten(0, 1)

    def select(self, scores, sides, centers):
        best, labels = scores.max(0)
        boxes = torch.cat([centers - sides[:2].T, centers + sides[2:].T], 1)
        likely = best > best.mean()
        best, labels, boxes = best[likely], labels[likely], boxes[likely]
        kept = keep_best(boxes, best)
        return {"boxes": boxes[kept], "labels": labels[kept], "scores": best[kept]}


@pytest.mark.parametrize("how", ["optimize", "compile"])
def test_detector(how, monkeypatch):
    imported, check = [], dynamo_piece._check_worth
    monkeypatch.setattr(
        dynamo_piece, "_check_worth", lambda x, **how: imported.append(x) or check(x, **how)
    )
    torch._dynamo.reset()
    torch.manual_seed(3)
    model = Detector().eval()
    fast = compiled(model) if how == "compile" else sol.optimize(model, sol.input([0, 3, 0, 0]))
    for n, h, w in (1, 24, 24), (1, 24, 24), (1, 32, 20), (2, 18, 26), (1, 40, 24):
        images = torch.rand(n, 3, h, w)
        with torch.no_grad():
            got, expected = fast(images), model(images)
        assert_equal(got, expected, 1e-4)
        assert len(got[0]["boxes"]) > 2
    kinds = [[record.kind for record in x.builder.records] for x in imported]
    assert {x.count("conv") for x in kinds} == {6, 0}  # all of them in one graph, for all sizes
