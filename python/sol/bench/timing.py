"""How engines are timed: they take turns, block by block, in one process, and medians are compared."""

import statistics
import time

BLOCKS = 6
PAUSE_S = 0.05  # before a block, so that the other engines' threads have parked
WARM_UP = 2  # calls before each block: the other engines had the caches


def time_block(run, seconds):
    """Call times of one block: at least 5 calls (2 of slow ones), at least `seconds`."""
    times, end = [], time.perf_counter() + seconds
    while len(times) < (2 if times and times[-1] > 0.5 else 5) or time.perf_counter() < end:
        start = time.perf_counter()
        run()
        times.append(time.perf_counter() - start)
    return times


def interleave(engines, seconds=2.0):
    """{name: [median ms, minimum ms]} for {name: function}; `seconds` per engine over all blocks.

    That is 30 calls or more of each, 12 of those that take over 0.5 s."""
    for run in engines.values():
        warm_up(run)
    times = {name: [] for name in engines}
    for _ in range(BLOCKS):
        for name, run in engines.items():
            time.sleep(PAUSE_S)
            warm_up(run)
            times[name] += time_block(run, seconds / BLOCKS)
    return {name: [statistics.median(t) * 1e3, min(t) * 1e3] for name, t in times.items()}


def warm_up(run):
    for _ in range(WARM_UP):
        run()
