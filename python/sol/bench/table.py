"""Results as tables: on the terminal, and in README between its marks."""

import math
import statistics

WIDTH = 20


def header(batch, peers):
    titles = [
        *peers,
        "sol",
        "ratio",
        "limit %",
        "own %",
        "error",
        "ovh. us",
        "cold s",
        "warm s",
        "export s",
    ]
    return f"{f'ms, batch {batch}':{WIDTH}s}" + "".join(f"{title:>12s}" for title in titles)


def line(row, peers):
    if "failed" in row:
        return f"{row['network']:{WIDTH}s} FAILED: {row['failed']}\n{row['output'].rstrip()}"
    cells = [milliseconds(row, name) for name in (*peers, "sol")]
    cells += [number(row, "ratio", ".2f"), percent(row, "of_limit"), percent(row, "own")]
    cells += [f"{row['error']:.1e}", number(row, "overhead_us", ".0f")]
    cells += [
        f"{seconds:.2f}"
        for seconds in (row["cold"]["own"], row["warm"]["own"], row["warm"]["export"])
    ]
    text = f"{row['network']:{WIDTH}s}" + "".join(f"{cell:>12s}" for cell in cells)
    if "ratios" in row:
        text += "  runs: " + " ".join(f"{ratio:.2f}" for ratio in row["ratios"])
    return text + ("  fell back: " + "; ".join(row["fallbacks"]) if row["fallbacks"] else "")


def milliseconds(row, engine):
    return f"{row['ms'][engine][0]:.2f}" if engine in row["ms"] else "-"


def number(row, key, form):
    return f"{row[key]:{form}}" if key in row else "-"


def percent(row, key):
    return f"{100 * row[key]:.0f}" if key in row else "-"


def native_ratios(rows):
    """Of the networks that SOL itself ran."""
    return [row["ratio"] for row in rows if "ratio" in row and not row["fallbacks"]]


def geometric_mean(ratios):
    return math.exp(statistics.fmean(map(math.log, ratios)))


def summary(results):
    """Who was left out and why, and the mean of the ratios."""
    lines, rows = [], results["rows"]
    for peer, reason in sorted({item for row in rows for item in row.get("left_out", {}).items()}):
        names = [row["network"] for row in rows if row.get("left_out", {}).get(peer) == reason]
        where = "everywhere" if len(names) == len(rows) else ", ".join(names)
        lines.append(f"left out: {peer} ({reason}): {where}")
    if ratios := native_ratios(rows):
        lines.append(
            f"geometric mean of {len(ratios)} ratios {geometric_mean(ratios):.2f}, smallest {min(ratios):.2f}"
        )
    return "\n".join(lines)


# ---- README ----

BEGIN, END = "<!-- bench: begin -->", "<!-- bench: end -->"
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
    """The block for README: what was measured and where, the table, the mean. ``picture``: a path, if there is one."""
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
    """The best peer is bold. What PyTorch runs in SOL's place has no ratio that would say something of SOL."""
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


def replace_block(text, block):
    """``text`` with ``block`` between the marks. Raises ValueError when there are none."""
    begin, end = text.find(BEGIN), text.find(END)
    if begin < 0 or end < begin:
        raise ValueError(f"there is no {BEGIN} with an {END} behind it")
    return f"{text[: begin + len(BEGIN)]}\n{block}\n{text[end:]}"
