"""Tiny networks of transformers: as a whole in SOL, with masks, caches as results, and any length. tools/network_words.py has them."""

import pathlib
import sys

import pytest
import torch

import sol.pytorch as sol

pytest.importorskip("transformers")
sys.path.append(str(pathlib.Path(__file__).parents[2] / "tools"))
import network_words

SOME = ["Bert", "DebertaV2", "GPT2", "Llama", "Mistral", "T5", "XLM", "Beit", "Wav2Vec2", "Whisper"]


@pytest.fixture(autouse=True)
def interpreted(monkeypatch):
    """Kernels are interpreted: there are many, and other tests compile such kernels."""
    monkeypatch.setenv("SOL_CC", "none")


def leaves(value):
    if isinstance(value, torch.Tensor):
        return [value]
    if isinstance(value, dict):
        value = list(value.values())
    elif hasattr(value, "layers"):  # a cache
        value = [x for layer in value.layers for x in (layer.keys, layer.values)]
    return [x for part in value for x in leaves(part)] if isinstance(value, (list, tuple)) else []


def assert_close(found, expected):
    assert type(found) is type(expected)
    ours, theirs = leaves(found), leaves(expected)
    assert len(ours) == len(theirs) > 0
    for x, y in zip(ours, theirs):
        torch.testing.assert_close(x, y, rtol=1e-3, atol=1e-4)


def specs(inputs):
    return [x if x is None else sol.input([0, *x.shape[1:]], dtype=x.dtype) for x in inputs]


def assert_native(fast):
    assert not sol.fallbacks(fast) and not sol.host_nodes(fast) and not sol.graphs(fast)


@pytest.mark.parametrize("name", SOME)
def test_network(name):
    model = network_words.build(name)
    fast = sol.optimize(model, *specs(network_words.inputs(name, 2)))
    with torch.no_grad():
        for batch in 2, 1:
            inputs = network_words.inputs(name, batch)
            assert_close(fast(*inputs), model(*inputs))
    assert_native(fast)


@pytest.mark.parametrize("name", ["Bert", "GPT2"])
def test_any_length(name):
    model = network_words.build(name)
    fast = sol.optimize(model, sol.input([0, 0], dtype=torch.int64))
    with torch.no_grad():
        for batch, length in (4, 5), (4, 12), (4, 23), (1, 5), (1, 12):
            words = torch.randint(5, 99, (batch, length))
            assert_close(fast(words), model(words))
            if batch == 4:
                assert sol.recompiles(fast) == 0
    assert_native(fast)


def test_a_mask_as_keyword():
    model, (words, mask) = network_words.build("Bert"), network_words.inputs("Bert", 2)
    fast = sol.optimize(model, *specs([words, mask]))
    with torch.no_grad():
        assert_close(fast(words, attention_mask=mask), model(words, attention_mask=mask))
    assert_native(fast)


def test_a_cache_from_a_result_continues_the_text():
    model = network_words.build("Llama")
    fast = sol.optimize(model, sol.input([0, 12], dtype=torch.int64))
    words, _ = network_words.inputs("Llama", 2)
    with torch.no_grad():
        expected, found = model(words), fast(words)
        assert_native(fast)
        for result in expected, found:
            result.next = model(words[:, :1], past_key_values=result.past_key_values)
    assert_close(found.next, expected.next)


def make_writer(family, n_layers=2):
    """Returns a small network that generates text, of 50 words."""
    import transformers

    size = {"vocab_size": 50, "bos_token_id": 0, "eos_token_id": None, "pad_token_id": 0}
    if family == "GPT2":
        size |= {"n_layer": n_layers, "n_head": 2, "n_embd": 16}
    else:
        size |= {"num_hidden_layers": n_layers, "num_attention_heads": 2, "hidden_size": 16}
        size["ffn_dim" if family == "OPT" else "intermediate_size"] = 32
    if family == "OPT":
        size["word_embed_proj_dim"] = 16
    model = getattr(transformers, "OPTForCausalLM" if family == "OPT" else WRITERS[family])
    torch.manual_seed(0)
    return model(model.config_class(**size)).eval()


WRITERS = {"GPT2": "GPT2LMHeadModel", "Llama": "LlamaForCausalLM", "GPTNeoX": "GPTNeoXForCausalLM"}


def make_prompt(batch, length):
    return torch.randint(1, 50, (batch, length), generator=torch.Generator().manual_seed(batch))


def generate(model, words, seed=None, **options):
    """Returns 12 more words: the likeliest, or those drawn with ``seed``."""
    if seed is not None:
        torch.manual_seed(seed)
    return model.generate(words, max_new_tokens=12, do_sample=seed is not None, **options)


STATIC = {"cache_implementation": "static"}


@pytest.mark.parametrize(
    "family, options",
    [
        ("GPT2", {}),
        ("GPT2", STATIC),
        ("Llama", {}),
        ("Llama", STATIC),
        ("OPT", {}),
        ("GPTNeoX", {}),
    ],
)
def test_generation(family, options):
    """generate() with a key/value cache: no graph per token, though each layer's cache has a length of its own for Dynamo."""
    torch._dynamo.reset()
    model = make_writer(family, n_layers=5 if family == "GPT2" else 2)
    fast = sol.optimize(model, make_prompt(2, 7))
    for _ in range(2):
        words = make_prompt(2, 7)
        assert torch.equal(generate(fast, words, **options), generate(model, words, **options))
    assert len(sol.graphs(fast.generate)) <= 3
    assert not sol.fallbacks(fast.generate)


def test_generation_of_other_sizes_and_by_chance():
    torch._dynamo.reset()
    model = make_writer("GPT2")
    fast = sol.optimize(model, make_prompt(1, 7))
    for batch, length, seed in [(1, 7, None), (1, 5, None), (4, 9, None), (4, 6, 3), (1, 11, 4)]:
        words = make_prompt(batch, length)
        assert torch.equal(generate(fast, words, seed), generate(model, words, seed))
    graphs = len(sol.graphs(fast.generate))
    assert torch.equal(generate(fast, words, 5, num_beams=1), generate(model, words, 5))
    assert len(sol.graphs(fast.generate)) == graphs
    assert not sol.fallbacks(fast.generate)


def test_generation_by_torch_compile():
    torch._dynamo.reset()
    model, words = make_writer("Llama"), make_prompt(2, 7)
    expected = generate(model, words)
    model.forward = torch.compile(model.forward, backend="sol")
    assert torch.equal(generate(model, words), expected)
    assert not sol.fallbacks(model.forward) and sol.graphs(model.forward)
