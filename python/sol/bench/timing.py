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


def take_turns(engines, seconds=2.0, progress=None):
    """{name: [call times of each block]} for {name: function}; `seconds` per engine over all blocks.

    That is 30 calls or more of each, 12 of those that take over 0.5 s. `progress(name, turn)` is called before each block.
    """
    for run in engines.values():
        warm_up(run)
    blocks = {name: [] for name in engines}
    for turn in range(BLOCKS):
        for name, run in engines.items():
            if progress:
                progress(name, turn)
            time.sleep(PAUSE_S)
            warm_up(run)
            blocks[name].append(time_block(run, seconds / BLOCKS))
    return blocks


def warm_up(run):
    for _ in range(WARM_UP):
        run()


# ---- What the times say ----


def interleave(engines, seconds=2.0):
    """{name: [median ms, minimum ms]} of `take_turns`."""
    return summarize(take_turns(engines, seconds))


def summarize(blocks):
    """{name: [median ms, minimum ms]}."""
    every = {name: sum(times, []) for name, times in blocks.items()}
    return {name: [statistics.median(t) * 1e3, min(t) * 1e3] for name, t in every.items()}


def spread(blocks):
    """{name: [ms that 10% of the calls do not exceed, ms that 90% do not]}."""
    found = {}
    for name, times in blocks.items():
        ordered = sorted(sum(times, []))
        found[name] = [ordered[int(share * (len(ordered) - 1))] * 1e3 for share in (0.1, 0.9)]
    return found


def ratio_spread(blocks, peer):
    """[smallest, largest] ratio of the peer's median over SOL's in one round of turns: how far one round is from another."""
    rounds = zip(blocks[peer], blocks["sol"])
    ratios = [statistics.median(a) / statistics.median(b) for a, b in rounds]
    return [min(ratios), max(ratios)]
