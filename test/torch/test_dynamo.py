"""torch.compile(backend="sol"): its options, its reports, what makes graphs again, and networks that run without fallback."""

import gc
import weakref

import pytest
import torch
from conftest import assert_equal
from torch import nn

import sol.pytorch as sol
from sol.pytorch import dynamo_piece
from sol.pytorch.dynamo import PROCESS
from sol.pytorch.dynamo_report import find_report


class Net(nn.Module):
    def __init__(self, width=4, between=None, breaks=False):
        super().__init__()
        self.a, self.b = nn.Conv2d(3, width, 3, padding=1), nn.Conv2d(width, 2, 3, padding=1)
        self.norm = nn.BatchNorm2d(width)
        self.between, self.breaks = between, breaks

    def forward(self, x):
        y = torch.relu(self.norm(self.a(x)))
        if self.breaks:
            torch._dynamo.graph_break()
        return self.b(self.between(y) if self.between else y)


FOREIGN = "a forward-mode gradient is wanted"


def bessel(y):
    return torch.special.bessel_j0(y)


@pytest.fixture(autouse=True)
def fresh():
    torch._dynamo.reset()


@pytest.fixture
def x():
    return torch.rand(2, 3, 8, 8)


@pytest.fixture
def lines(monkeypatch):
    """The lines of the log."""
    lines = []
    monkeypatch.setattr("sol.log.say", lambda level, text: lines.append(text))
    return lines


def build(**options):
    return Net(**options).eval()


def compiled(model, **options):
    return torch.compile(model, backend="sol", **options)


def assert_same(fast, model, *inputs, tolerance=1e-5):
    with torch.no_grad():
        assert_equal(fast(*inputs), model(*inputs), tolerance)


def run_in_pytorch(fast, x):
    """Makes a call in a mode that SOL does not run."""
    with torch.autograd.forward_ad.dual_level():
        fast(x)


def plans_of(fast):
    return [entry.plan for x in find_report(fast).pieces for entry in x._entries if entry.plan]


# ---- Options ----


WRONG = {
    "unknown": (
        {"options": {"tune": 1}},
        ValueError,
        "takes no tune=1.*batch_size.*fullgraph.*name",
    ),
    "mode": ({"mode": "max-autotune"}, ValueError, "takes no mode='max-autotune'.*batch_size"),
    "batch of 0": ({"options": {"batch_size": 0}}, ValueError, "batch_size=0"),
    "batch as text": ({"options": {"batch_size": "8"}}, TypeError, "an integer, not '8'"),
    "fullgraph": ({"options": {"fullgraph": 1}}, TypeError, "'fullgraph'.* must be a bool, not 1"),
    "name": ({"options": {"name": 3}}, TypeError, "'name'.* must be a str, not 3"),
}


@pytest.mark.parametrize("name", WRONG)
def test_wrong_options(name, x):
    """Each call raises the error itself: Dynamo would wrap what the backend raises."""
    options, kind, text = WRONG[name]
    fast = compiled(build(), **options)
    for _ in range(2):
        with torch.no_grad(), pytest.raises(kind, match=text) as caught:
            fast(x)
        assert type(caught.value) is kind


def test_default_mode(x):
    model = build()
    assert_same(compiled(model, mode="default"), model, x)


def test_name(x, lines):
    model = build()
    fast = compiled(model, options={"name": "my net"})
    assert_same(fast, model, x)
    run_in_pytorch(fast, x)
    assert any(line.startswith("my net graph 0/0") and "compiled in" in line for line in lines)
    assert f"my net runs in PyTorch: {FOREIGN}" in lines


def test_batch_size(x, monkeypatch):
    """It is the hint for an open batch, and has no effect on others."""
    hints, compile_plan = [], dynamo_piece.compile_plan
    monkeypatch.setattr(
        dynamo_piece,
        "compile_plan",
        lambda *args: hints.append(args[3].batch_hint) or compile_plan(*args),
    )
    model = build()
    fast = compiled(model, options={"batch_size": 32})
    assert_same(fast, model, x)
    assert_same(fast, model, torch.rand(5, 3, 8, 8))
    assert hints == [None, 32] and sol.recompiles(fast) == 1


def test_equal_options_share_a_backend(x):
    """Other options are other graphs for Dynamo, equal ones are not."""
    model = build()
    for options in {"name": "n"}, {"name": "n"}, {"name": "m"}:
        assert_same(compiled(model, options=options), model, x)
    assert len(sol.graphs(compiled(model))) == 2


# ---- fullgraph ----

STRICT = {"argument": {"fullgraph": True}, "option": {"options": {"fullgraph": True}}}


@pytest.mark.parametrize("how", STRICT)
def test_fullgraph(how, x):
    model = build()
    assert_same(compiled(model, **STRICT[how]), model, x)


@pytest.mark.parametrize("how", STRICT)
def test_fullgraph_refuses_host_nodes(how, x):
    """The message names the operator, its overload, types and shapes."""
    model = build(between=bessel)
    fast = compiled(model, **STRICT[how])
    for _ in range(2):
        with (
            torch.no_grad(),
            pytest.raises(
                NotImplementedError, match=r"aten.special_bessel_j0.default\(f32\[2,4,8,8\]\)"
            ),
        ):
            fast(x)
    assert sol.fallbacks(fast) == {f"{sol.graphs(fast)[0].name}: {sol.graphs(fast)[0].reason}": 0}


def test_only_no_graph_breaks(x, few_layers):
    """The option overrides the argument: then fullgraph has Dynamo's meaning only."""
    model = build(between=bessel)
    fast = compiled(model, fullgraph=True, options={"fullgraph": False})
    assert_same(fast, model, x)
    (node,) = sol.host_nodes(fast)
    assert "bessel" in node.call and "test_dynamo.py" in node.origin


def test_fullgraph_runs_small_graphs(x):
    """A graph that would not pay is compiled, as nothing may run in PyTorch."""
    fast = compiled(lambda x: x + 1, fullgraph=True)
    with torch.no_grad():
        assert_equal(fast(x), x + 1)
    assert len(plans_of(fast)) == 1 and sol.fallbacks(fast) == {}


def test_fullgraph_of_views(x):
    """There is nothing to compute: no error."""
    fast = compiled(lambda x: (x[0], x.shape[1]), fullgraph=True)
    with torch.no_grad():
        assert_equal(fast(x)[0], x[0])


def test_fullgraph_of_a_mode(x):
    """A mode of a call is no error, as in sol.optimize."""
    fast = compiled(build(), fullgraph=True)
    run_in_pytorch(fast, x)
    assert sol.fallbacks(fast) == {FOREIGN: 1}


def test_fullgraph_of_bad_data():
    model = nn.Sequential(nn.Embedding(10, 4), nn.Linear(4, 3)).eval()
    fast = compiled(model, fullgraph=True)
    assert_same(fast, model, torch.tensor([1, 2]))
    with torch.no_grad(), pytest.raises(IndexError):
        fast(torch.tensor([1, 10]))


def test_fullgraph_has_no_selector(x):
    """PyTorch must not run a call, also if it is faster."""
    sol.config["compiler::never_slower"] = True
    try:
        fast = compiled(build(), fullgraph=True)
        with torch.no_grad():
            fast(x)
    finally:
        sol.config["compiler::never_slower"] = False
    assert [e.selector for s in find_report(fast).pieces for e in s._entries] == [None]


# ---- Reports ----


def test_reports_of_a_module(x, few_layers):
    model = build(between=bessel, breaks=True)
    fast = compiled(model)
    assert (sol.graphs(fast), sol.fallbacks(fast), sol.host_nodes(fast)) == ([], {}, [])
    assert_same(fast, model, x)
    one, two = sol.graphs(fast)
    assert one.reason is None and two.reason is None
    assert "test_dynamo.py" in one.end.origin and two.end is None
    assert [node.call.split("(")[0] for node in sol.host_nodes(fast)] == [
        "aten.special_bessel_j0.default"
    ]
    assert sol.fallbacks(fast) == {} and sol.recompiles(fast) == 0


def test_each_module_has_its_report(x):
    """Also if Dynamo gives two modules of one class the same graph."""
    one, two = compiled(build()), compiled(build())
    with torch.no_grad():
        one(x)
        two(x)
    assert sol.graphs(one) == sol.graphs(two) != []
    run_in_pytorch(two, x)
    assert sol.fallbacks(one) == {} and sol.fallbacks(two) == {FOREIGN: 1}
    assert PROCESS.fallbacks[FOREIGN] >= 1


FORMS = {
    "function": lambda model: compiled(lambda x: model(x)),
    "method": lambda model: compiled(model.forward),
    "nn.Module.compile": lambda model: model.compile(backend="sol") or model,
    "decorator": lambda model: torch.compile(backend="sol")(lambda x: model(x)),
    "Sequential": lambda model: compiled(nn.Sequential(model, nn.Flatten())),
    "module in a module": lambda model: compiled(nn.Sequential(compiled(model))),
}


@pytest.mark.parametrize("name", FORMS)
def test_what_torch_compile_returns(name, x):
    fast = FORMS[name](build())
    with torch.no_grad():
        fast(x)
    assert [graph.reason for graph in sol.graphs(fast)] == [None]
    before = sol.fallback_count()
    run_in_pytorch(fast, x)
    assert sol.fallbacks(fast) == {FOREIGN: 1}
    assert sol.fallback_count() == before + 1


def test_wrapped_twice(x):
    """Both results have one report, and nothing is made again."""
    model = build()
    one, two = compiled(model), compiled(model)
    for fast in one, two, one:
        assert_same(fast, model, x)
    assert len(sol.graphs(two)) == 1 and sol.graphs(one) == sol.graphs(two)
    assert sol.recompiles(two) == 0


@pytest.mark.parametrize("report", ["fallbacks", "graphs", "host_nodes", "recompiles", "refresh"])
def test_no_report(report):
    for other in build(), print, torch.compile(build(), backend="eager"):
        if isinstance(other, torch._dynamo.OptimizedModule):
            assert not sol.graphs(other)  # SOL has run none of its graphs
        else:
            with pytest.raises(TypeError, match="what sol.optimize or torch.compile returned"):
                getattr(sol, report)(other)


def test_a_report_keeps_nothing_alive(x):
    model = build()
    fast = compiled(model)
    assert_same(fast, model, x)
    assert sol.graphs(fast)
    alive = weakref.ref(model)
    del model, fast
    gc.collect()
    assert alive() is None


def test_count_of_fallbacks(x):
    """It is of the process: of sol.optimize, too."""
    before = sol.fallback_count()
    model = build()
    fast = sol.optimize(model, sol.input([0, 3, 8, 8]))
    assert_same(fast, model, x)
    assert sol.fallback_count() == before
    hook = model.register_full_backward_hook(lambda *args: None)
    fast(x)  # a call with gradients, which the hook needs
    hook.remove()
    run_in_pytorch(compiled(model), x)
    assert sol.fallback_count() == before + 2
    import sol as package

    assert package.fallback_count() == before + 2


# ---- Recompiles ----


def test_recompiles_are_explained(x, lines):
    model = build()
    fast = compiled(model)
    assert_same(fast, model, x)
    assert (sol.recompiles(fast), sol.recompile_reasons(fast)) == (0, [])
    assert_same(fast, model, x[:, :, :6])
    (again,) = sol.recompile_reasons(fast)
    assert sol.recompiles(fast) == 1
    assert "size mismatch at index 2. expected 8, actual 6" in again.reason, again
    assert again.name == sol.graphs(fast)[1].name
    found = [line for line in lines if "compiled again" in line]
    assert len(found) == 1 and again.name in found[0] and again.reason in found[0]


def test_a_python_value_is_explained(x):
    model = build()
    model.k = "one"
    fast = compiled(lambda x: model(x) + (1 if model.k == "one" else 2))
    for model.k in "one", "two":
        with torch.no_grad():
            fast(x)
    (again,) = sol.recompile_reasons(fast)
    assert "two" in again.reason or "one" in again.reason, again


def test_recompiles_of_optimize(x):
    model = build(breaks=True)
    fast = sol.optimize(model, sol.input([0, 3, 0, 0]))
    assert_same(fast, model, x)
    assert sol.recompile_reasons(fast) == []
    assert_same(fast, model, x[:, :, :6])
    reasons = [again.reason for again in sol.recompile_reasons(fast)]
    assert len(reasons) == sol.recompiles(fast) == 2
    assert all("size mismatch" in reason for reason in reasons), reasons


def count_compiled(fast):
    """Returns the number of kernels that the C compiler made for each plan."""
    return [plan.program.n_compiled for plan in plans_of(fast)]


def test_no_kernel_is_compiled_twice(x):
    """Neither if Dynamo makes a graph again, nor if the model is wrapped again."""
    model = build(width=7)
    fast = compiled(model)
    assert_same(fast, model, x)
    for size in 3, 4, 5:
        assert_same(fast, model, torch.rand(size, 3, 8, 8))
    assert sol.recompiles(fast) == 1  # one graph for all batch sizes
    torch._dynamo.reset()
    again = compiled(model)
    assert_same(again, model, x)
    assert_same(again, model, torch.rand(3, 3, 8, 8))
    assert len(plans_of(again)) >= 2 and sum(count_compiled(again)) == 0


def test_mark_dynamic(x):
    """The batch is open from the first call on: one graph, one plan."""
    model = build()
    fast = compiled(model)
    torch._dynamo.mark_dynamic(x, 0)
    for batch in x, torch.rand(5, 3, 8, 8), torch.rand(9, 3, 8, 8):
        assert_same(fast, model, batch)
    assert len(plans_of(fast)) == 1 and sol.recompiles(fast) == 0
    assert sol.fallbacks(fast) == {}


def test_dynamic(x):
    """dynamic=True opens all sizes, and the numbers of modules, such as the epsilon of a norm."""
    model = build()
    fast = compiled(model, dynamic=True)
    for n, h, w in (2, 8, 9), (3, 7, 12), (5, 16, 9):
        assert_same(fast, model, torch.rand(n, 3, h, w))
    assert len(plans_of(fast)) == 1 and sol.recompiles(fast) == 0
    assert sol.fallbacks(fast) == {}


def test_more_open_sizes_than_a_model_may_have():
    """Sizes that are equal in the first call have one name; PyTorch runs a call in which they differ."""

    def add(*parts):
        return [torch.sigmoid(x @ x.T) for x in parts]

    fast = compiled(add)
    for lengths in [3] * 10, [5] * 10, [8] * 10, [4] * 9 + [6]:
        parts = [torch.rand(n, 4) for n in lengths]
        for part in parts:
            torch._dynamo.mark_dynamic(part, 0)
        with torch.no_grad():
            assert_equal(fast(*parts), add(*parts))
        n = sum(sol.fallbacks(fast).values())
        assert n == (len(set(lengths)) > 1), sol.fallbacks(fast)


# ---- State and results ----


class State(Net):
    """Writes a buffer, and returns views of a result and of the input."""

    def __init__(self):
        super().__init__()
        self.register_buffer("seen", torch.zeros(2))

    def forward(self, x):
        y = super().forward(x)
        self.seen.mul_(0.5).add_(y.mean((0, 2, 3)))
        return y, y[0], x[:, 1], y + self.seen[:, None, None]


@pytest.mark.parametrize("fullgraph", [False, True])
def test_state_and_aliases(fullgraph):
    model, twin = State().eval(), State().eval()
    twin.load_state_dict(model.state_dict())
    fast = compiled(model, fullgraph=fullgraph)
    with torch.no_grad():
        for n in 2, 2, 3, 4:
            x = torch.rand(n, 3, 8, 8)
            got, expected = fast(x), twin(x)
            assert_equal(got, expected)
            assert_equal(model.seen, twin.seen)
            assert got[1].data_ptr() == got[0].data_ptr()
            assert got[2].data_ptr() == x[:, 1].data_ptr()
        model.seen.zero_(), twin.seen.zero_()
        assert_equal(fast(x), twin(x))
        assert_equal(model.seen, twin.seen)
    assert sol.fallbacks(fast) == {}


# ---- Networks ----


class LastStep(nn.Module):
    def __init__(self, rnn):
        super().__init__()
        self.rnn, self.out = rnn, nn.Linear(6, 2)

    def forward(self, x):
        return self.out(self.rnn(x)[0][:, -1])


@pytest.mark.parametrize("kind", [nn.LSTM, nn.GRU, nn.RNN])
@pytest.mark.parametrize("allowed", [True, False])
def test_recurrent(kind, allowed, few_layers):
    """Dynamo traces them only if asked; else it makes no graph of the forward, which the report tells."""
    model, x = LastStep(kind(5, 6, batch_first=True)).eval(), torch.rand(2, 7, 5)
    fast = compiled(model)
    with torch._dynamo.config.patch(allow_rnn=allowed):
        for _ in range(2):
            assert_same(fast, model, x)
        if allowed:
            assert sol.fallbacks(fast) == {} and len(sol.graphs(fast)) == 1
        else:
            ((reason, n),) = sol.fallbacks(fast).items()
            assert "no graph of forward (test_dynamo.py" in reason and "LSTM" in reason and n


def test_transformers(few_layers):
    transformers = pytest.importorskip("transformers")
    small = {"vocab_size": 50, "max_position_embeddings": 64}
    bert = transformers.BertConfig(
        hidden_size=16, num_hidden_layers=2, num_attention_heads=2, intermediate_size=32, **small
    )
    gpt2 = transformers.GPT2Config(
        vocab_size=50, n_positions=64, n_embd=16, n_layer=2, n_head=2, use_cache=False
    )
    for model in transformers.BertModel(bert).eval(), transformers.GPT2Model(gpt2).eval():
        torch._dynamo.reset()
        fast = compiled(model)
        for n, length in (1, 8), (2, 8), (2, 12), (3, 9):
            words = torch.randint(0, 50, (n, length))
            with torch.no_grad():
                got, expected = fast(words), model(words)
            assert type(got) is type(expected)
            assert_equal(got[0], expected[0], 1e-4)
        assert sol.fallbacks(fast) == {}


@pytest.mark.parametrize("name", ["squeezenet1_1", "shufflenet_v2_x0_5", "mobilenet_v2"])
def test_torchvision(name):
    models = pytest.importorskip("torchvision.models")
    torch.manual_seed(1)
    model = getattr(models, name)(num_classes=10).eval()
    fast = compiled(model, fullgraph=True)
    for n in 2, 3:
        assert_same(fast, model, torch.rand(n, 3, 64, 64), tolerance=1e-4)
    assert sol.fallbacks(fast) == {} and sol.recompiles(fast) == 1
