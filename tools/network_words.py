"""Small networks of words, images and sound from transformers, one per family, with random weights: for docs and tests.

NETWORKS: {name: (configuration class, model class, changes of the tiny configuration, kind of its inputs)}; ``build`` makes the
model, ``inputs`` its inputs. Nothing is downloaded.
"""

import inspect

import torch

# What all configurations get, as far as they have such a number.
TINY = {
    "hidden_size": 32, "d_model": 32, "n_embd": 32, "dim": 32, "embed_dim": 32, "emb_dim": 32, "embedding_size": 16,
    "num_hidden_layers": 2, "n_layer": 2, "num_layers": 2, "n_layers": 2, "encoder_layers": 2, "decoder_layers": 2,
    "num_decoder_layers": 2, "num_attention_heads": 4, "n_head": 4, "num_heads": 4, "n_heads": 4,
    "encoder_attention_heads": 4, "decoder_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 8, "d_kv": 8,
    "intermediate_size": 64, "d_ff": 64, "ffn_dim": 64, "hidden_dim": 64, "encoder_ffn_dim": 64, "decoder_ffn_dim": 64,
    "d_inner": 64, "vocab_size": 99, "max_position_embeddings": 64, "n_positions": 64, "pad_token_id": 1,
    "bos_token_id": 0, "eos_token_id": 2, "decoder_start_token_id": 2, "image_size": 32, "patch_size": 8,
    "num_mel_bins": 16, "max_source_positions": 30, "max_target_positions": 30, "state_size": 8,
}  # fmt: skip

WORDS, PAIRS, IMAGES, SOUND, SPECTRUM = "words", "pairs", "images", "sound", "spectrum"
SEVERAL = {"use_cache": False}
NETWORKS = {
    **{
        name: (f"{name}Config", f"{name}Model", {}, WORDS)
        for name in [
            "Albert", "BigBird", "Bert", "Bloom", "Camembert", "ConvBert", "Data2VecText", "Deberta", "DebertaV2",
            "DistilBert", "Electra", "Ernie", "Falcon", "Gemma", "Gemma2", "Glm", "GPT2", "GPTNeoX", "IBert", "LayoutLM",
            "Llama", "MegatronBert", "Mistral", "MobileBert", "MPNet", "Nystromformer", "Olmo", "OPT", "Phi", "Phi3",
            "Qwen2", "Qwen3", "RemBert", "Roberta", "RoFormer", "StableLm", "Starcoder2", "XGLM", "XLM", "XLMRoberta",
            "XLNet",
        ]
    },
    **{
        name: (f"{name}Config", f"{name}Model", SEVERAL, PAIRS)
        for name in ["Bart", "Blenderbot", "M2M100", "Marian", "MBart", "MT5", "Pegasus", "T5", "UMT5"]
    },
    **{
        name: (f"{name}Config", f"{name}Model", {}, IMAGES)
        for name in ["Beit", "DeiT", "Dinov2", "Segformer", "ViT"]
    },
    "Wav2Vec2": (
        "Wav2Vec2Config", "Wav2Vec2Model",
        {"conv_dim": (32, 32), "conv_stride": (5, 2), "conv_kernel": (10, 3), "num_feat_extract_layers": 2,
         "num_conv_pos_embeddings": 16, "num_conv_pos_embedding_groups": 2}, SOUND,
    ),
    "Whisper": ("WhisperConfig", "WhisperModel", SEVERAL, SPECTRUM),
}  # fmt: skip


def build(name, seed=0):
    """Returns the model, in eval mode."""
    import transformers

    config_class, model_class, changes, _ = NETWORKS[name]
    config = getattr(transformers, config_class)()
    numbers = {key for key, value in config.to_dict().items() if type(value) is int}
    for key, value in (TINY | changes).items():
        if key in changes or key in numbers:
            setattr(config, key, value)
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        return getattr(transformers, model_class)(config).eval()


def inputs(name, batch):
    """Returns the list of positional inputs, with None where the forward has other arguments between."""
    import transformers

    _, model_class, _, kind = NETWORKS[name]
    given = make_inputs(kind, batch)
    names = list(inspect.signature(getattr(transformers, model_class).forward).parameters)[1:]
    return [given.get(name) for name in names[: 1 + max(map(names.index, given))]]


def make_inputs(kind, batch, length=12, seed=1):
    """Returns {name: tensor}: words with a mask that hides the end of the second sample, a pair of texts, an image, ..."""
    generator = torch.Generator().manual_seed(seed)

    def words(n):
        return torch.randint(5, 99, (batch, n), generator=generator)

    def floats(*shape):
        return torch.randn(batch, *shape, generator=generator)

    if kind == IMAGES:
        return {"pixel_values": floats(3, 32, 32)}
    if kind == SOUND:
        return {"input_values": floats(1600)}
    if kind == SPECTRUM:
        return {"input_features": floats(16, 60), "decoder_input_ids": words(7)}
    mask = torch.ones(batch, length, dtype=torch.int64)
    mask[1:2, -3:] = 0
    second = {"decoder_input_ids": words(7)} if kind == PAIRS else {}
    return {"input_ids": words(length), "attention_mask": mask} | second
