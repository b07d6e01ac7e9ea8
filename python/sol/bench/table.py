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
