"""The ratios as a picture: horizontal bars in a self-contained SVG.

A bar longer than 1 is a network that SOL runs faster than the best peer, whose name stands behind the bar.
"""

from html import escape

ROW, BAR, LEFT, WIDTH, RIGHT, TOP, BOTTOM = 22, 14, 170, 480, 150, 46, 26
FASTER, SLOWER, LINE = "#2f6f9f", "#c2763a", "#999999"
STYLE = "text{font:12px sans-serif;fill:#222} .small{font-size:11px;fill:#666}"


def draw(results, titles):
    """SVG text; ``titles``: {peer: its name for people}. Networks that SOL did not run are left out."""
    rows = [row for row in results["rows"] if "ratio" in row and not row["fallbacks"]]
    rows.sort(key=lambda row: -row["ratio"])
    scale = WIDTH / max([1.0, *(row["ratio"] for row in rows)])
    height = TOP + ROW * len(rows) + BOTTOM
    one = LEFT + scale
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{LEFT + WIDTH + RIGHT}" height="{height}"'
        f' viewBox="0 0 {LEFT + WIDTH + RIGHT} {height}">',
        f"<style>{STYLE}</style>",
        '<rect width="100%" height="100%" fill="white"/>',
        text(LEFT, 18, "Time of the best other engine / time of SOL"),
        text(LEFT, 34, subtitle(results["machine"], rows), "small"),
    ]
    for i, row in enumerate(rows):
        parts += bar(row, TOP + ROW * i, scale, titles)
    bottom = height - BOTTOM
    parts.append(
        f'<line x1="{one:.1f}" y1="{TOP - 4}" x2="{one:.1f}" y2="{bottom}" stroke="{LINE}" stroke-dasharray="3 3"/>'
    )
    parts += [text(one, bottom + 16, "1", "small", "middle"), "</svg>", ""]
    return "\n".join(parts)


def subtitle(machine, rows):
    batch = f", batch {rows[0]['batch']}" if rows else ""
    return (
        f"{machine['cpu']}, {machine['isa']}, {machine['threads']} threads{batch}; longer is better"
    )


def bar(row, y, scale, titles):
    length = row["ratio"] * scale
    colour = FASTER if row["ratio"] >= 1 else SLOWER
    middle = y + BAR - 3
    yield text(LEFT - 8, middle, row["network"], anchor="end")
    yield f'<rect x="{LEFT}" y="{y}" width="{length:.1f}" height="{BAR}" fill="{colour}"/>'
    label = f"{row['ratio']:.2f}  {titles.get(row['best'], row['best'])}"
    yield text(LEFT + length + 6, middle, label, "small")


def text(x, y, words, kind="", anchor="start"):
    of = f' class="{kind}"' if kind else ""
    return f'<text x="{x:.1f}" y="{y}"{of} text-anchor="{anchor}">{escape(words)}</text>'
