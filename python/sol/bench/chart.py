"""The ratios as a horizontal bar chart in a self-contained SVG.

A ratio is the time of the fastest peer divided by SOL's time. The peer's name is at the end of the bar.
"""

from html import escape

ROW, BAR, WIDTH, RIGHT, TOP, BOTTOM = 22, 14, 480, 150, 46, 26
LETTER = 7  # approximate width of a letter, for the names to the left of the bars
FASTER, SLOWER, LINE = "#2f6f9f", "#c2763a", "#999999"
STYLE = "text{font:12px sans-serif;fill:#222} .small{font-size:11px;fill:#666}"


def draw(results, titles):
    """Returns SVG text. ``titles``: {peer: displayed name}. The chart has only networks that ran in SOL without fallback."""
    rows = [row for row in results["rows"] if "ratio" in row and not row["fallbacks"]]
    rows.sort(key=lambda row: -row["ratio"])
    left = 20 + LETTER * max([10, *(len(row["network"]) for row in rows)])
    width = left + WIDTH + RIGHT
    scale = WIDTH / max([1.0, *(row["ratio"] for row in rows)])
    height = TOP + ROW * len(rows) + BOTTOM
    one = left + scale
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{height}"'
        f' viewBox="0 0 {width} {height}">',
        f"<style>{STYLE}</style>",
        '<rect width="100%" height="100%" fill="white"/>',
        text(left, 18, "Time of the best other engine / time of SOL"),
        text(left, 34, subtitle(results["machine"], rows), "small"),
    ]
    for i, row in enumerate(rows):
        parts += bar(row, left, TOP + ROW * i, scale, titles)
    bottom = height - BOTTOM
    parts.append(
        f'<line x1="{one:.1f}" y1="{TOP - 4}" x2="{one:.1f}" y2="{bottom}" stroke="{LINE}" stroke-dasharray="3 3"/>'
    )
    parts += [text(one, bottom + 16, "1", "small", "middle"), "</svg>", ""]
    return "\n".join(parts)


def subtitle(machine, rows):
    batch = f", batch {rows[0]['batch']}" if rows and "batch" in rows[0] else ""
    return (
        f"{machine['cpu']}, {machine['isa']}, {machine['threads']} threads{batch}; longer is better"
    )


def bar(row, x, y, scale, titles):
    length = row["ratio"] * scale
    colour = FASTER if row["ratio"] >= 1 else SLOWER
    middle = y + BAR - 3
    yield text(x - 8, middle, row["network"], anchor="end")
    yield f'<rect x="{x}" y="{y}" width="{length:.1f}" height="{BAR}" fill="{colour}"/>'
    label = f"{row['ratio']:.2f}  {titles.get(row['best'], row['best'])}"
    yield text(x + length + 6, middle, label, "small")


def text(x, y, words, kind="", anchor="start"):
    of = f' class="{kind}"' if kind else ""
    return f'<text x="{x:.1f}" y="{y}"{of} text-anchor="{anchor}">{escape(words)}</text>'
