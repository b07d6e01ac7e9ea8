"""Results of single layers as tables: on the terminal, and in a document."""

from sol.bench import load, table

WIDTH = 40
MARKS = "<!-- layers: begin -->", "<!-- layers: end -->"
GOAL = 0.85  # of the limit: a row that reaches it is as good as a row that beats its peers
FAR = 0.7  # of the limit: peers below it leave room to be faster

# {title: meaning} of the columns behind each engine's median in microseconds.
COLUMNS = {
    "ratio": "time of the fastest other engine over SOL's: above 1, SOL is faster",
    "spread": "smallest and largest ratio of one round of turns",
    "limit %": "share of this machine's limit that SOL reaches: the time of the multiplications at the measured peak, or of"
    " the bytes of inputs, weights and results at the measured bandwidth of the cache that holds them, over SOL's time",
    "peer %": "the same for the fastest other engine",
    "rate": "what SOL reaches of the resource that limits the row",
    "error": "largest difference of SOL's result from PyTorch's, relative to the largest output",
}


def header(peers, _batch=None):
    titles = [*peers, "sol", *COLUMNS]
    return f"{'us':{WIDTH}s}" + "".join(f"{title:>12s}" for title in titles)


def line(row, peers):
    if "failed" in row:
        return table.failure(row, WIDTH)
    cells = [microseconds(row, name) for name in (*peers, "sol")]
    cells += [table.number(row, "ratio", ".2f"), table.interval(row.get("ratio_spread"))]
    cells += [table.percent(row, "of_limit"), table.percent(row, "peer_of_limit"), rate(row)]
    text = f"{row['network']:{WIDTH}s}" + "".join(f"{cell:>12s}" for cell in cells)
    text += f"{row['error']:12.1e}"
    if words := load.warning(row.get("busy")):
        text += f"  unreliable: {words}"
    return text + ("  in PyTorch: " + "; ".join(row["fallbacks"]) if row["fallbacks"] else "")


def microseconds(row, engine):
    return f"{1e3 * row['ms'][engine][0]:.1f}" if engine in row["ms"] else "-"


def rate(row):
    """What SOL reaches: GB/s if memory limits the row, else GF/s."""
    limit, seconds = row["limit"], row["ms"]["sol"][0] * 1e-3
    if limit["is_memory"]:
        return f"{limit['bytes'] / seconds * 1e-9:.0f} GB/s"
    return f"{limit['gflop'] / seconds:.0f} GF/s"


def summary(results):
    """Returns the means, and the rows that are slower than a peer and far from the limit, as text."""
    rows = [row for row in results["rows"] if "ratio" in row and not row["fallbacks"]]
    lines = []
    if rows:
        lines.append(f"geometric mean of {len(rows)} ratios {mean(rows)}{table.mean_spread(rows)}")
        good = [row for row in rows if row["ratio"] >= 1 or row["of_limit"] >= GOAL]
        far = [row for row in rows if row["peer_of_limit"] < FAR]
        lines.append(
            f"{len(good)} of {len(rows)} are at least as fast as every other engine, or reach {GOAL:.0%} of the limit"
        )
        lines.append(
            f"geometric mean {mean(far)} over {len(far)} rows in which the best other engine reaches less than {FAR:.0%}"
        )
    lines += [f"in PyTorch: {row['network']}" for row in results["rows"] if row.get("fallbacks")]
    return "\n".join(lines)


def mean(rows):
    return f"{table.geometric_mean([row['ratio'] for row in rows]):.2f}" if rows else "-"


def markdown(results, peers, picture=None):
    """Returns the block for a document: the machine, the table, and the means. ``picture``: path of the chart, or None."""
    rows = [row for row in results["rows"] if "failed" not in row]
    columns = [name for name in (*peers, "sol") if any(name in row["ms"] for row in rows)]
    short = [table.SHORT[name] for name in columns]
    titles = ["layer, input", *short, "best ÷ SOL", "SOL of the limit", "best of the limit", "SOL"]
    lines = ["Microseconds, median.", "", f"Measured on {results['about']}.", ""]
    lines += [f"![ratios]({picture})", ""] if picture else []
    lines += [table.table_row(titles), "|---" + "|---:" * (len(titles) - 1) + "|"]
    lines += [table.table_row(markdown_cells(row, columns)) for row in rows]
    return "\n".join([*lines, "", summary(results).replace("\n", "; ") + "."])


def markdown_cells(row, columns):
    cells = [row["network"], *(microseconds(row, name) for name in columns)]
    if row["fallbacks"]:
        return [*cells, "in PyTorch", "-", "-", "-"]
    shares = [f"{table.percent(row, key)}%" for key in ("of_limit", "peer_of_limit")]
    return [*cells, table.number(row, "ratio", ".2f"), *shares, rate(row)]
