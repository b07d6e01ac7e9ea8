"""Results as tables: on the terminal, and in README between MARKS."""

import math
import statistics

from sol import _core
from sol.bench import load

WIDTH = 20

# {title: meaning} of the columns on the terminal, which follow the engines' medians in milliseconds.
COLUMNS = {
    "ratio": "time of the fastest other engine over SOL's: above 1, SOL is faster",
    "spread": "smallest and largest ratio of one round of turns: where they are far apart, the ratio says little",
    "limit %": "share of this machine's limit that SOL reaches: the time in which multiplications and memory,"
    " at the rates measured here, could be done, over SOL's time",
    "own %": "share of SOL's time in its own kernels, not in oneDNN's or OpenBLAS's",
    "error": "largest difference of SOL's result from PyTorch's, relative to the largest output",
    "ovh. us": "overhead: microseconds that a call takes beyond its kernels",
    "cold s": "seconds that SOL compiles, with an empty kernel cache",
    "warm s": "the same with a filled cache",
    "export s": "seconds that PyTorch needs besides to hand over the network",
}


def header(peers, batch):
    titles = [*peers, "sol", *COLUMNS]
    return f"{f'ms, batch {batch}':{WIDTH}s}" + "".join(f"{title:>12s}" for title in titles)


def failure(row, width):
    """Returns the lines of a row that failed, whose name has ``width`` columns."""
    output = _core.clean(row["output"].rstrip(), True)
    return f"{row['network']:{width}s} FAILED: {_core.clean(row['failed'])}\n{output}"


def line(row, peers):
    if "failed" in row:
        return failure(row, WIDTH)
    cells = [milliseconds(row, name) for name in (*peers, "sol")]
    cells += [number(row, "ratio", ".2f"), interval(row.get("ratio_spread"))]
    cells += [percent(row, "of_limit"), percent(row, "own")]
    cells += [f"{row['error']:.1e}", number(row, "overhead_us", ".0f")]
    cells += [
        f"{seconds:.2f}"
        for seconds in (row["cold"]["own"], row["warm"]["own"], row["warm"]["export"])
    ]
    text = f"{row['network']:{WIDTH}s}" + "".join(f"{cell:>12s}" for cell in cells)
    if "ratios" in row:
        text += "  runs: " + " ".join(f"{ratio:.2f}" for ratio in row["ratios"])
    if words := load.warning(row.get("busy")):
        text += f"  unreliable: {words}"
    return text + ("  fell back: " + "; ".join(row["fallbacks"]) if row["fallbacks"] else "")


def milliseconds(row, engine):
    return f"{row['ms'][engine][0]:.2f}" if engine in row["ms"] else "-"


def number(row, key, form):
    return f"{row[key]:{form}}" if key in row else "-"


def percent(row, key):
    return f"{100 * row[key]:.0f}" if key in row else "-"


def interval(bounds):
    return f"{bounds[0]:.2f}-{bounds[1]:.2f}" if bounds else "-"


def native_ratios(rows):
    """Returns the ratios of the networks that ran in SOL without fallback."""
    return [row["ratio"] for row in rows if "ratio" in row and not row["fallbacks"]]


def geometric_mean(ratios):
    return math.exp(statistics.fmean(map(math.log, ratios)))


def mean_spread(rows):
    """Returns the geometric means of the lower and of the upper ends of all spreads, as text; "" without spreads."""
    spreads = [
        row["ratio_spread"] for row in rows if row.get("ratio_spread") and not row["fallbacks"]
    ]
    return f" ({interval([geometric_mean(ends) for ends in zip(*spreads)])})" if spreads else ""


def summary(results):
    """Returns the peers that were left out with their reasons, the mean of the ratios, and a warning of load, as text."""
    lines, rows = [], results["rows"]
    for peer, reason in sorted({item for row in rows for item in row.get("left_out", {}).items()}):
        names = [row["network"] for row in rows if row.get("left_out", {}).get(peer) == reason]
        where = "everywhere" if len(names) == len(rows) else ", ".join(names)
        lines.append(f"left out: {peer} ({reason}): {where}")
    if ratios := native_ratios(rows):
        lines.append(
            f"geometric mean of {len(ratios)} ratios {geometric_mean(ratios):.2f}{mean_spread(rows)}, smallest {min(ratios):.2f}"
        )
    if busy := [row["network"] for row in rows if load.warning(row.get("busy"))]:
        lines.append(
            f"warning: the machine was busy with other work; unreliable: {', '.join(busy)}"
        )
    return "\n".join(lines)


# ---- README ----

MARKS = "<!-- bench: begin -->", "<!-- bench: end -->"
SHORT = {
    "eager": "eager",
    "eager_cl": "channels_last",
    "inductor": "Inductor",
    "onnxruntime": "ONNX Runtime",
    "openvino": "OpenVINO",
    "ncnn": "ncnn",
    "sol": "**SOL**",
}


def markdown(results, peers, picture=None):
    """Returns the block for README: the machine, the table, and the mean. ``picture``: path of the chart, or None."""
    rows = [row for row in results["rows"] if "failed" not in row]
    columns = [name for name in (*peers, "sol") if any(name in row["ms"] for row in rows)]
    titles = ["network", *(SHORT[name] for name in columns), "best ÷ SOL", "of the limit"]
    lines = [f"Milliseconds, median; batch {rows[0]['batch'] if rows else '?'}.", ""]
    lines += [f"Measured on {results['about']}.", ""]
    lines += [f"![ratios]({picture})", ""] if picture else []
    lines += [table_row(titles), "|---" + "|---:" * (len(titles) - 1) + "|"]
    lines += [table_row(markdown_cells(row, columns)) for row in rows]
    return "\n".join([*lines, "", *notes(rows)])


def table_row(cells):
    return "| " + " | ".join(cells) + " |"


def markdown_cells(row, columns):
    """Returns the cells of a row, with the best peer in bold. A network that fell back to PyTorch gets no ratio."""
    cells = [milliseconds(row, name) for name in columns]
    if row.get("best") in columns:
        at = columns.index(row["best"])
        cells[at] = f"**{cells[at]}**"
    if row["fallbacks"]:
        return [row["network"], *cells, "in PyTorch", "-"]
    share = f"{percent(row, 'of_limit')}%" if "of_limit" in row else "-"
    return [row["network"], *cells, number(row, "ratio", ".2f"), share]


def notes(rows):
    if not (ratios := native_ratios(rows)):
        return []
    best = sum(ratio >= 1 for ratio in ratios)
    return [
        f"Best ÷ SOL is the time of the best other engine over SOL's: {geometric_mean(ratios):.2f} in the geometric"
        f" mean of {len(ratios)} networks, at least {min(ratios):.2f}, and SOL is the fastest on {best} of them."
        " The limit is the time in which this machine could do the multiplications and read the memory of each"
        " layer, at the rates that were measured."
    ]


def replace_block(text, block, marks=MARKS):
    """Returns ``text`` with ``block`` between the marks. Raises ValueError if the marks are missing."""
    begin, end = text.find(marks[0]), text.find(marks[1])
    if begin < 0 or end < begin:
        raise ValueError(f"there is no {marks[0]} with an {marks[1]} behind it")
    return f"{text[: begin + len(marks[0])]}\n{block}\n{text[end:]}"
