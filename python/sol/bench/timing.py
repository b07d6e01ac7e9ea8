"""The timing protocol: engines run in turns, block by block, in one process; medians are compared."""

import statistics
import time

BLOCKS = 6
PAUSE_S = 0.05  # seconds before a block, in which other engines' threads stop spinning
WARM_UP = 2  # untimed calls before each block, as the caches hold other engines' data
LONG_S = 0.5  # a call that takes longer is long: what it loses to cold caches does not count


def time_block(run, seconds):
    """Returns the times of the calls of one block, in seconds.

    A block takes at least `seconds`, and has at least 5 calls, or 2 of long ones.
    """
    times, end = [], time.perf_counter() + seconds
    while len(times) < (2 if times and times[-1] > LONG_S else 5) or time.perf_counter() < end:
        start = time.perf_counter()
        run()
        times.append(time.perf_counter() - start)
    return times


def take_turns(engines, seconds=2.0, progress=None):
    """Returns {name: [a list of call times in seconds per block]}.

    `engines`: {name: function}. `seconds`: per engine, for all blocks. `progress(name, turn)`: called before each block.
    Each engine has at least 30 calls, or 12 of long ones.
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
    """Runs untimed calls: WARM_UP, or one long one."""
    for _ in range(WARM_UP):
        start = time.perf_counter()
        run()
        if time.perf_counter() - start > LONG_S:
            break


# ---- Statistics ----


def interleave(engines, seconds=2.0):
    """Times the engines by `take_turns`. Returns {name: [median ms, minimum ms]}."""
    return summarize(take_turns(engines, seconds))


def summarize(blocks):
    """Returns {name: [median ms, minimum ms]} over all blocks."""
    every = {name: sum(times, []) for name, times in blocks.items()}
    return {name: [statistics.median(t) * 1e3, min(t) * 1e3] for name, t in every.items()}


def spread(blocks):
    """Returns {name: [10th percentile, 90th percentile]} of the call times in ms."""
    found = {}
    for name, times in blocks.items():
        ordered = sorted(sum(times, []))
        found[name] = [ordered[int(share * (len(ordered) - 1))] * 1e3 for share in (0.1, 0.9)]
    return found


def ratio_spread(blocks, peer):
    """Returns [smallest, largest] ratio of the peer's median to SOL's over the rounds of turns: how stable the ratio is."""
    rounds = zip(blocks[peer], blocks["sol"])
    ratios = [statistics.median(a) / statistics.median(b) for a, b in rounds]
    return [min(ratios), max(ratios)]
