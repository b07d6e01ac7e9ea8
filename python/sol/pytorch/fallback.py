"""Counts the calls of modules, and of graphs of torch.compile, that PyTorch runs instead of SOL, in the whole process."""

_n = 0


def count_fallback():
    """Counts a call that PyTorch runs."""
    global _n
    _n += 1


def fallback_count():
    """Returns how many calls PyTorch has run instead of SOL in this process, for whatever reason: calls of what ``sol.optimize``
    returned, and calls of single graphs of torch.compile. ``fallbacks`` has the reasons."""
    return _n
