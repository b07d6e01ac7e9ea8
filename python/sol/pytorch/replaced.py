"""Functions of torch.nn whose code is replaced during a capture, as no graph can contain it.

    nn.TransformerEncoder      compares the values of a mask, uses nested tensors, and computes in another way while PyTorch compiles
    functional._canonical_mask warns of masks of two types

Each replacement gives the results of eager calls in inference. Only the code of a function changes, not the function: the guard
compares the function itself. The globals are the original's, so a replacement uses no name of this file. Other threads
that call such a function meanwhile get the same results, perhaps more slowly.
"""

import contextlib

import torch


def _is_causal_mask(mask, is_causal=None, size=None):
    """Instead of _detect_is_causal_mask. That a mask is causal is only a hint, by which it may be left out."""
    return is_causal is True


def _canonical_mask(mask, mask_name, other_type, other_name, target_type, check_other=True):
    """Returns a mask that is added to scores: a bool becomes 0 or -inf."""
    if mask is None or torch.is_floating_point(mask):
        return mask
    if mask.dtype != torch.bool:
        raise AssertionError(f"only bool and floating types of {mask_name} are supported")
    return torch.zeros_like(mask, dtype=target_type).masked_fill_(mask, float("-inf"))


def _encode(self, src, mask=None, src_key_padding_mask=None, is_causal=None):
    """nn.TransformerEncoder.forward. Where eager calls use nested tensors, whose padding is 0 behind the last layer, this one
    computes all positions and then makes them 0. Eager calls use them if the padding of all samples is at their ends."""
    # The names are those of torch.nn.modules.transformer.
    padding = F._canonical_mask(  # noqa: F821
        src_key_padding_mask, "src_key_padding_mask", None, "mask", src.dtype
    )
    mask = F._canonical_mask(mask, "mask", None, "", src.dtype)  # noqa: F821
    first = self.layers[0]
    is_nested = (
        torch.backends.mha.get_fastpath_enabled()
        and getattr(self, "use_nested_tensor", False)
        and not first.training
        and not torch.is_grad_enabled()
        and src.dim() == 3
        and padding is not None
        and mask is None
    )
    if is_nested and not getattr(self, "mask_check", True):
        raise NotImplementedError("nn.TransformerEncoder with nested tensors and no mask_check")
    output = src
    for layer in self.layers:
        output = layer(
            output, src_mask=mask, is_causal=is_causal is True, src_key_padding_mask=padding
        )
    if is_nested:
        hidden = padding.logical_not().logical_not()
        is_at_end = (hidden[:, 1:] | hidden[:, :-1].logical_not()).all()
        output = output.masked_fill((hidden & is_at_end).unsqueeze(-1), 0.0)
    return output if self.norm is None else self.norm(output)


def _find():
    """Yields (function, its replacement) for all functions that this PyTorch has."""
    transformer = torch.nn.modules.transformer
    yield getattr(transformer, "_detect_is_causal_mask", None), _is_causal_mask
    yield getattr(torch.nn.functional, "_canonical_mask", None), _canonical_mask
    yield torch.nn.TransformerEncoder.forward, _encode


@contextlib.contextmanager
def replaced_code():
    """Replaces the code of the functions above. Only one thread at a time may do so."""
    saved = [(function, function.__code__) for function, _ in _find() if function is not None]
    try:
        for function, replacement in _find():
            if function is not None:
                function.__code__ = replacement.__code__
        yield
    finally:
        for function, code in saved:
            function.__code__ = code
