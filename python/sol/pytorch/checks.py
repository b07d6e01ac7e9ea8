"""Checks of arguments that ``sol.optimize`` and torch.compile's options have in common."""


def check_batch_size(n, where):
    """Raises TypeError or ValueError if ``n`` is neither None nor a batch size to tune for. ``where``: for the message."""
    if n is None:
        return
    if isinstance(n, bool) or not isinstance(n, int):
        raise TypeError(f"{where}: batch_size must be an integer, not {n!r}")
    if not 0 < n < 2**31:
        raise ValueError(f"{where}: batch_size={n}")
