"""Classical models, ai.onnx.ml: results are those of formulas in NumPy or of ONNX's reference, malformed attributes are errors."""

import numpy as np
import pytest
from onnx import TensorProto, helper, numpy_helper
from onnx.reference import ReferenceEvaluator

import sol.onnx as sol

rng = np.random.default_rng(0)
DOMAIN = "ai.onnx.ml"
X = rng.standard_normal((9, 4)).astype(np.float32)


def make(op, *inputs, outputs=("y",), version=3, **attributes):
    """A model of one node. A dict among the inputs is a map from texts to floats."""
    ports = []
    for i, x in enumerate(inputs):
        if isinstance(x, dict):
            item = helper.make_tensor_type_proto(TensorProto.FLOAT, [])
            kind = helper.make_map_type_proto(TensorProto.STRING, item)
            ports.append(helper.make_value_info(f"x{i}", kind))
        else:
            kind = helper.np_dtype_to_tensor_dtype(x.dtype)
            ports.append(helper.make_tensor_value_info(f"x{i}", kind, [None] * x.ndim))
    node = helper.make_node(op, [x.name for x in ports], list(outputs), domain=DOMAIN, **attributes)
    results = [helper.make_tensor_value_info(name, TensorProto.UNDEFINED, None) for name in outputs]
    graph = helper.make_graph([node], "g", ports, results)
    imports = [helper.make_opsetid("", 18), helper.make_opsetid(DOMAIN, version)]
    return helper.make_model(graph, opset_imports=imports, ir_version=9)


def run(op, *inputs, **more):
    return sol.load(make(op, *inputs, **more).SerializeToString())(*inputs)


def check(op, *inputs, outputs=("y",), version=3, **attributes):
    """Compares with ONNX's reference."""
    model = make(op, *inputs, outputs=outputs, version=version, **attributes)
    got = sol.load(model.SerializeToString())(*inputs)
    expected = ReferenceEvaluator(model).run(None, {f"x{i}": x for i, x in enumerate(inputs)})
    for a, b in zip(got if isinstance(got, tuple) else (got,), expected, strict=True):
        assert a.shape == b.shape
        if a.dtype == object:
            assert a.tolist() == b.tolist()
        else:
            np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-6)
    return got


def floats(*shape):
    return rng.standard_normal(shape).astype(np.float32).ravel().tolist()


# ---- Features ----


@pytest.mark.parametrize("dtype", [np.float32, np.float64, np.int64])
@pytest.mark.parametrize("n", [1, 4])
def test_scaler(n, dtype):
    x = (X * 4).astype(dtype)
    offset, scale = np.float32(floats(n)), np.float32(floats(n))
    got = run("Scaler", x, offset=offset.tolist(), scale=scale.tolist())
    assert got.dtype == np.float32
    np.testing.assert_allclose(got, (x.astype(np.float32) - offset) * scale, rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("norm", ["MAX", "L1", "L2"])
def test_normalizer(norm):
    x = np.abs(X)
    check("Normalizer", x, norm=norm)
    x[2] = 0
    assert not run("Normalizer", x, norm=norm)[2].any()  # not 0 / 0


def test_imputer():
    x = X.copy()
    x[::2, 1] = np.nan
    check("Imputer", x, imputed_value_floats=floats(4), replaced_value_float=float("nan"))
    whole = rng.integers(0, 3, (5, 4))
    check("Imputer", whole, imputed_value_int64s=[7], replaced_value_int64=1)


def test_plain_mathematics_is_compiled():
    network = sol.load(make("Scaler", X, offset=[1.0], scale=[2.0]).SerializeToString())
    network(X)
    assert network.counts == (1, 0)


def test_joined_features():
    y = run("FeatureVectorizer", X, X[:, :1], X[:, 0], inputdimensions=[2, 3, 1])
    zeros = np.zeros((9, 2), np.float32)
    np.testing.assert_array_equal(y, np.hstack([X[:, :2], X[:, :1], zeros, X[:, :1]]))


def test_categories():
    words = np.array([["a", "b"], ["c", "?"]], object)
    check("OneHotEncoder", words, cats_strings=["b", "a", "c"], zeros=1)
    check("OneHotEncoder", np.array([3, 9, 1]), cats_int64s=[1, 3], zeros=1)
    with pytest.raises(ValueError, match="no category, with zeros=0"):
        run("OneHotEncoder", np.array([3, 9]), cats_int64s=[1, 3], zeros=0)
    table = {"cats_strings": ["a", "b"], "cats_int64s": [5, 6]}
    y = run("CategoryMapper", words, default_int64=-7, **table)
    assert y.tolist() == [[5, 6], [-7, -7]]
    y = run("CategoryMapper", np.array([6, 1]), default_string="none", **table)
    assert y.tolist() == ["b", "none"]


def test_maps():
    scores = np.float32([[0.25, 0.75], [1, 0]])
    rows = run("ZipMap", scores, classlabels_int64s=[3, 5])
    assert rows == [{3: 0.25, 5: 0.75}, {3: 1.0, 5: 0.0}]
    assert run("ZipMap", scores[0], classlabels_strings=["a", "b"]) == [{"a": 0.25, "b": 0.75}]
    model = make("DictVectorizer", {}, string_vocabulary=["a", "b", "c"]).SerializeToString()
    session = sol.InferenceSession(model)
    assert session.get_inputs()[0].type == "map(string,tensor(float))"
    (y,) = session.run(None, {"x0": {"c": 2.0, "?": 9.0, "a": 1.0}})
    np.testing.assert_array_equal(y, np.float32([[1, 0, 2]]))
    with pytest.raises(ValueError, match="is a dict, not a list"):
        session.run(None, {"x0": [1.0]})


# ---- Linear models, support vector machines ----


def test_linear_regressor():
    weights = {"coefficients": floats(3, 4), "intercepts": floats(3), "targets": 3}
    check("LinearRegressor", X, post_transform="NONE", **weights)


@pytest.mark.parametrize("post", ["NONE", "SOFTMAX", "LOGISTIC", "SOFTMAX_ZERO"])
def test_linear_classifier(post):
    weights = {"coefficients": floats(3, 4), "intercepts": floats(3), "post_transform": post}
    for labels in ({"classlabels_ints": [4, 6, 9]}, {"classlabels_strings": ["a", "b", "c"]}):
        check("LinearClassifier", X, outputs=("label", "score"), **weights, **labels)


def test_one_score_for_two_classes():
    weights = {"coefficients": [1.0, 0, 0, 0], "intercepts": [0.5], "classlabels_ints": [4, 6]}
    more = {"outputs": ("label", "score"), **weights}
    s = X[:, 0] + np.float32(0.5)
    label, score = run("LinearClassifier", X, **more)
    assert label.tolist() == np.where(s > 0, 6, 4).tolist()
    np.testing.assert_allclose(score, np.stack([1 - s, s], 1), rtol=1e-5)
    _, score = run("LinearClassifier", X, post_transform="LOGISTIC", **more)
    p = 1 / (1 + np.exp(-s))
    np.testing.assert_allclose(score, np.stack([1 - p, p], 1), rtol=1e-5)


KERNELS = ["LINEAR", "POLY", "RBF", "SIGMOID"]


@pytest.mark.parametrize("kernel", KERNELS)
@pytest.mark.parametrize("classes", [2, 3])
def test_svm_classifier(kernel, classes):
    check("SVMClassifier", X, outputs=("label", "score"), **machine(kernel, classes))


def machine(kernel, classes):
    n, pairs = 2 * classes, classes * (classes - 1) // 2
    return {
        "kernel_type": kernel, "kernel_params": [0.25, 0.5, 2.0], "post_transform": "NONE",
        "vectors_per_class": [2] * classes, "support_vectors": floats(n, 4), "rho": floats(pairs),
        "coefficients": [-1.0, *floats(classes - 1, n)[1:]], "classlabels_ints": list(range(classes)),
    }  # fmt: skip


def couple(r):
    """The probabilities p of classes for which sum over i, j of (r[j,i] p[i] - r[i,j] p[j])^2 is least; their sum is 1."""
    n = len(r)
    q = -r.T * r
    np.fill_diagonal(q, (r**2).sum(0))
    system = np.block([[q, np.ones((n, 1))], [np.ones((1, n)), np.zeros((1, 1))]])
    return np.linalg.solve(system, [*[0] * n, 1])[:n]


@pytest.mark.parametrize("kernel", KERNELS)
@pytest.mark.parametrize("classes", [2, 3, 4])
def test_svm_probabilities(kernel, classes):
    attributes, outputs = machine(kernel, classes), ("label", "score")
    decisions = run("SVMClassifier", X, outputs=outputs, **attributes)[1]
    a, b = (np.float32(floats(decisions.shape[1] if classes > 2 else 1)) for _ in range(2))
    attributes |= {"prob_a": a.tolist(), "prob_b": b.tolist()}
    scores = run("SVMClassifier", X, outputs=outputs, **attributes)[1]
    for row, score in zip(decisions[:, -len(a) :], scores, strict=True):
        r = np.zeros((classes, classes))
        r[np.triu_indices(classes, 1)] = 1 / (1 + np.exp(row * a + b))
        r += np.tril(1 - r.T, -1)
        np.testing.assert_allclose(score, couple(r), atol=0.01)  # the iteration stops early


@pytest.mark.parametrize("kernel", KERNELS)
def test_svm_regressor(kernel):
    attributes = {"kernel_type": kernel, "kernel_params": [0.25, 0.5, 2.0], "rho": [0.5]}
    vectors = {"coefficients": floats(5), "support_vectors": floats(5, 4), "n_supports": 5}
    check("SVMRegressor", X, one_class=0, **attributes, **vectors)
    check("SVMRegressor", X, one_class=1, **attributes, **vectors)


# ---- Trees ----

SPLITS = ["BRANCH_LEQ", "BRANCH_LT", "BRANCH_GTE", "BRANCH_GT", "BRANCH_EQ", "BRANCH_NEQ"]


def forest(kind, modes=("BRANCH_LEQ",), n_trees=5, targets=(0, 1, 2), low=-1):
    """Random trees of 3 inner nodes and 4 leaves. Each leaf has a weight per target."""
    nodes = {name: [] for name in (
        "treeids", "nodeids", "featureids", "modes", "values", "truenodeids", "falsenodeids",
        "missing_value_tracks_true",
    )}  # fmt: skip
    weights = {name: [] for name in ("treeids", "nodeids", "ids", "weights")}
    for tree in range(n_trees):
        for i in range(7):
            mode = rng.choice(modes) if i < 3 else "LEAF"
            inner = rng.integers(4), str(mode), float(rng.integers(-1, 2)), 2 * i + 1, 2 * i + 2
            feature, mode, value, yes, no = inner if i < 3 else (0, "LEAF", 0.0, 0, 0)
            row = tree, i, int(feature), mode, value, yes, no, int(rng.integers(2))
            for column, x in zip(nodes.values(), row, strict=True):
                column.append(x)
            for target in targets if i >= 3 else ():
                weight = float(np.float32(rng.uniform(low, 1)))
                for column, x in zip(weights.values(), (tree, i, target, weight), strict=True):
                    column.append(x)
    return {f"nodes_{k}": v for k, v in nodes.items()} | {
        f"{kind}_{k}": v for k, v in weights.items()
    }


def grid(dtype=np.float32):
    """Values that are often equal to those of the splits."""
    return rng.integers(-2, 3, (40, 4)).astype(dtype)


@pytest.mark.parametrize("modes", [SPLITS[:1], SPLITS], ids=["leq", "all"])
@pytest.mark.parametrize("merge", ["SUM", "AVERAGE", "MIN", "MAX"])
def test_tree_regressor(merge, modes):
    trees = forest("target", modes)
    check("TreeEnsembleRegressor", grid(), n_targets=3, aggregate_function=merge, **trees)
    trees["base_values"] = floats(3)
    check("TreeEnsembleRegressor", grid(), n_targets=3, aggregate_function=merge, **trees)


@pytest.mark.parametrize("post", ["NONE", "SOFTMAX", "LOGISTIC", "SOFTMAX_ZERO"])
@pytest.mark.parametrize("dtype", [np.float32, np.float64, np.int64])
def test_tree_classifier(post, dtype):
    more = {"outputs": ("label", "score"), "post_transform": post, **forest("class")}
    check("TreeEnsembleClassifier", grid(dtype), classlabels_int64s=[4, 6, 9], **more)
    check("TreeEnsembleClassifier", grid(dtype), classlabels_strings=["a", "b", "c"], **more)


def test_missing_values_of_trees():
    x = grid()
    x[rng.random(x.shape) < 0.3] = np.nan
    check("TreeEnsembleRegressor", x, n_targets=3, aggregate_function="SUM", **forest("target"))


def test_trees_with_doubles():
    trees = forest("target")
    for name in ("nodes_values", "target_weights"):
        values = np.array(trees.pop(name), np.float64)
        trees[f"{name}_as_tensor"] = numpy_helper.from_array(values, name)
    assert run("TreeEnsembleRegressor", grid(np.float64), n_targets=3, **trees).shape == (40, 3)


@pytest.mark.parametrize("low, threshold", [(0, 0.5), (-1, 0)])
def test_weights_of_one_class_only(low, threshold):
    """Converters write the classes of two like this."""
    trees, x = forest("class", targets=[0], low=low), grid()
    sums = {name.replace("class", "target"): value for name, value in trees.items()}
    s = run("TreeEnsembleRegressor", x, n_targets=1, **sums)[:, 0]
    more = {"outputs": ("label", "score"), "classlabels_int64s": [4, 6]}
    label, score = run("TreeEnsembleClassifier", x, **more, **trees)
    assert label.tolist() == np.where(s > threshold, 6, 4).tolist()
    np.testing.assert_allclose(score[:, 1], s)
    np.testing.assert_allclose(score[:, 0], -s if low else 1 - s, rtol=1e-5)
    _, score = run("TreeEnsembleClassifier", x, post_transform="LOGISTIC", **more, **trees)
    np.testing.assert_allclose(score[:, 1], 1 / (1 + np.exp(-s)), rtol=1e-5)
    np.testing.assert_allclose(score.sum(1), 1, rtol=1e-5)


def ensemble(**changes):
    """TreeEnsemble: a tree that divides at feature 0, and then asks whether feature 1 is one of 1, 2."""
    tensor = numpy_helper.from_array
    attributes = {
        "n_targets": 2, "tree_roots": [0], "nodes_featureids": [0, 1], "leaf_targetids": [0, 1, 1],
        "nodes_modes": tensor(np.uint8([0, 6])), "nodes_splits": tensor(np.float32([0, 0])),
        "nodes_truenodeids": [1, 1], "nodes_trueleafs": [0, 1], "nodes_falsenodeids": [0, 2],
        "nodes_falseleafs": [1, 1], "leaf_weights": tensor(np.float32([5, 6, 7])),
        "membership_values": tensor(np.float32([1, 2, np.nan])),
    } | changes  # fmt: skip
    return {name: value for name, value in attributes.items() if value is not None}


def test_tree_ensemble():
    y = check("TreeEnsemble", grid(), version=5, **ensemble())
    assert {tuple(row) for row in y.tolist()} == {(5, 0), (0, 6), (0, 7)}


# ---- Malformed attributes ----


@pytest.mark.parametrize(
    "changes, message",
    [
        ({"nodes_truenodeids": [0, 1]}, "cycle"),
        ({"nodes_truenodeids": [1, 3]}, "a branch has 3, which is not below 3"),
        ({"nodes_falsenodeids": [-1, 2]}, "a branch has -1"),
        ({"nodes_featureids": [0, 4]}, "nodes_featureids has 4, which is not below 4"),
        ({"nodes_truenodeids": [1]}, "nodes_truenodeids does not have 2 values"),
        ({"leaf_targetids": [0, 1, 2]}, "a target or class has 2"),
        ({"tree_roots": [2]}, "tree_roots has 2"),
        ({"nodes_modes": numpy_helper.from_array(np.uint8([0, 7]))}, "nodes_modes has 7"),
        ({"leaf_weights": None}, "leaf_weights does not have 3 values"),
        ({"membership_values": None}, "membership_values has too few lists"),
        ({"n_targets": 0}, "n_targets"),
    ],
)
def test_malformed_ensembles(changes, message):
    with pytest.raises(ValueError, match=message):
        run("TreeEnsemble", -np.abs(X), version=5, **ensemble(**changes))


@pytest.mark.parametrize(
    "name, change, message",
    [
        ("nodes_truenodeids", lambda v: [0, *v[1:]], "cycle"),
        ("nodes_falsenodeids", lambda v: [99, *v[1:]], "tree 0 has no node 99"),
        ("nodes_featureids", lambda v: [-1, *v[1:]], "nodes_featureids has -1"),
        ("nodes_modes", lambda v: ["BRANCH_UP", *v[1:]], 'nodes_modes has "BRANCH_UP"'),
        ("nodes_values", lambda v: v[1:], "nodes_values does not have 7 values"),
        ("nodes_nodeids", lambda v: [1, *v[1:]], "two nodes of a tree have one number"),
        ("target_ids", lambda v: [3, *v[1:]], "a target or class has 3"),
        ("target_nodeids", lambda v: v[1:], "target_nodeids does not have 12 values"),
        ("base_values", lambda v: [1.0, 2.0], "base_values does not have 3 values"),
    ],
)
def test_malformed_forests(name, change, message):
    trees = forest("target", n_trees=1) | {"nodes_values": [9.0] * 7}
    trees[name] = change(trees.get(name))
    with pytest.raises(ValueError, match=message):
        run("TreeEnsembleRegressor", X, n_targets=3, **trees)


@pytest.mark.parametrize(
    "op, attributes, message",
    [
        ("Scaler", {"offset": [1.0, 2.0]}, "offset has 2 values for 4 features"),
        ("Imputer", {}, "imputed_value_floats is missing"),
        ("Normalizer", {"norm": "L3"}, 'norm "L3"'),
        ("LinearRegressor", {"coefficients": [1.0] * 5}, "5 coefficients"),
        ("LinearRegressor", {"coefficients": [1.0] * 4, "targets": 0}, "0 targets"),
        ("LinearClassifier", {"coefficients": [1.0] * 5}, "coefficients or intercepts"),
        (
            "LinearClassifier",
            {"coefficients": [1.0] * 12, "classlabels_ints": [1, 2]},
            "a class that has no label",
        ),
        ("SVMRegressor", {"coefficients": [1.0] * 4}, "rho is missing"),
        ("SVMRegressor", {"rho": [0.0], "n_supports": 2}, "support_vectors do not fit"),
        ("SVMRegressor", {"rho": [0.0], "n_supports": -2}, "support_vectors do not fit"),
        ("SVMClassifier", {"rho": [0.0]}, "classlabels_ints"),
        (
            "SVMClassifier",
            {"rho": [0.0], "classlabels_ints": [0, 1], "vectors_per_class": [1, -1]},
            "vectors_per_class",
        ),
        ("FeatureVectorizer", {"inputdimensions": [-1]}, "inputdimensions"),
        ("ZipMap", {"classlabels_int64s": [1]}, "number of labels"),
    ],
)
def test_malformed_attributes(op, attributes, message):
    outputs = ("y", "z") if "Classifier" in op else ("y",)
    with pytest.raises(ValueError, match=message):
        run(op, X, outputs=outputs, **attributes)
