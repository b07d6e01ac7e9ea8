"""Drawings as self-contained SVG text, without a library.

draw_layers(title, rows)    a network: one box per layer, in order, with arrows from the layers that it reads
draw_curve(...)             a quantity over time, with horizontal lines for comparison
"""

from html import escape
from typing import NamedTuple

from sol import _core

STYLE = (
    "text{font:12px system-ui,sans-serif;fill:#1c2430}.box{fill:#eef2f7;stroke:#8a97a6}"
    ".arrow{fill:none;stroke:#8a97a6}.curve{fill:#b9cbe6;stroke:#54749f}.line{stroke:#c05a3c;stroke-dasharray:5 4}"
)
ARROW = (
    '<defs><marker id="tip" markerWidth="7" markerHeight="7" refX="5" refY="3" orient="auto">'
    '<path d="M0 0L6 3L0 6z" fill="#8a97a6"/></marker></defs>'
)


def text(x, y, words):
    """Returns a text element. ``words`` is escaped: it may hold names from a model of unknown origin."""
    return f'<text x="{x:.1f}" y="{y:.1f}">{escape(_core.clean(words))}</text>'


def document(width, height, title, parts):
    return "\n".join(
        [
            f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{height}"'
            f' viewBox="0 0 {width} {height}">',
            f"<title>{escape(_core.clean(title))}</title><style>{STYLE}</style>{ARROW}",
            '<rect width="100%" height="100%" fill="white"/>',
            *parts,
            "</svg>",
            "",
        ]
    )


# ---- A network ----

ROW, BOX, LANE, LANES, TOP = 34, 24, 9, 24, 44
LETTER = 6.6  # approximate width of a letter


class Row(NamedTuple):
    """A layer. ``reads``: the indices of the earlier rows that it reads."""

    words: str
    reads: list


def draw_layers(title, rows):
    """Returns SVG text with the layers below each other.

    An arrow that passes other layers goes around them on the left, in the first free lane.
    """
    left = 24 + LANE * min(LANES, _most_passing(rows))
    width = int(left + 40 + LETTER * max([40, *(len(row.words) for row in rows)]))
    parts = [text(16, 24, title)]
    ends = [-1] * LANES
    for to, row in enumerate(rows):
        for at in sorted(set(row.reads)):
            parts.append(_arrow(at, to, left, ends))
    for i, row in enumerate(rows):
        y = TOP + ROW * i
        parts.append(
            f'<rect class="box" x="{left}" y="{y}" width="{width - left - 16}" height="{BOX}" rx="5"/>'
        )
        parts.append(text(left + 8, y + 16, row.words))
    return document(width, TOP + ROW * len(rows) + 8, title, parts)


def _most_passing(rows):
    """Returns the largest number of arrows that pass one row, at least 1."""
    changes = [0] * (len(rows) + 1)
    for to, row in enumerate(rows):
        for at in set(row.reads):
            if to > at + 1:
                changes[at] += 1
                changes[to] -= 1
    most = now = 0
    for change in changes:
        now += change
        most = max(most, now)
    return max(most, 1)


def _arrow(at, to, left, ends):
    y0, y1 = (TOP + ROW * i + BOX / 2 for i in (at, to))
    if to == at + 1:
        x = left + 40
        return f'<path class="arrow" marker-end="url(#tip)" d="M{x} {y0 + BOX / 2}V{y1 - BOX / 2 - 1}"/>'
    lane = next((i for i, end in enumerate(ends) if end <= at), LANES - 1)
    ends[lane] = to
    x = left - 8 - LANE * (lane + 1)
    return (
        f'<path class="arrow" marker-end="url(#tip)" d="M{left} {y0}C{left - 6} {y0} {x} {y0} {x} {y0 + 10}'
        f'V{y1 - 10}C{x} {y1} {left - 8} {y1} {left - 2} {y1}"/>'
    )


# ---- A curve ----

WIDTH, HEIGHT, MARGIN = 860, 260, 56


def draw_curve(title, points, lines, units):
    """Returns SVG text. ``points``: [(x, y)], at least one; ``lines``: {name: y}; ``units``: (unit of x, unit of y)."""
    longest = max(x for x, _ in points) or 1e-9
    highest = max([1e-9, *(y for _, y in points), *lines.values()])

    def place(x, y):
        return MARGIN + x / longest * WIDTH, TOP + HEIGHT - y / highest * HEIGHT

    corners = [place(0, 0), *(place(*point) for point in points), place(longest, 0)]
    path = "L".join(f"{x:.1f} {y:.1f}" for x, y in corners)
    parts = [text(16, 24, title), f'<path class="curve" d="M{path}z"/>']
    for name, value in lines.items():
        x, y = place(0, value)
        parts.append(
            f'<line class="line" x1="{x:.1f}" y1="{y:.1f}" x2="{MARGIN + WIDTH}" y2="{y:.1f}"/>'
        )
        parts.append(text(x + 6, y - 4, f"{name}: {value:.1f} {units[1]}"))
    parts.append(text(MARGIN, TOP - 6, f"{highest:.1f} {units[1]}"))
    parts.append(text(MARGIN, TOP + HEIGHT + 18, f"0 {units[0]}"))
    parts.append(text(MARGIN + WIDTH - 60, TOP + HEIGHT + 18, f"{longest:.3f} {units[0]}"))
    return document(WIDTH + 2 * MARGIN, HEIGHT + TOP + 30, title, parts)
