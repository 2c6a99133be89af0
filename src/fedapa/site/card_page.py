"""MODEL_CARD.html: a model card as a page for a browser, made of its Markdown; one file, without scripts or network.

Only what cards hold is known: headings, paragraphs, lists, tables, bold text and code. Names of sites, columns and
classes come from files of strangers: everything is escaped before it becomes markup.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from html import escape

STYLE = """
:root { color-scheme: light dark; --page: #fff; --ink: #1b1f23; --muted: #57606a; --line: #d9dde2; --card: #f6f7f9; }
@media (prefers-color-scheme: dark) {
  :root { --page: #15181b; --ink: #e6e8ea; --muted: #a3abb3; --line: #3a4047; --card: #1e2226; }
}
@page { margin: 18mm; }
* { box-sizing: border-box; }
body { margin: 0 auto; padding: 1.2rem 1rem 3rem; max-width: 52rem; background: var(--page); color: var(--ink);
  font: 16px/1.55 system-ui, -apple-system, "Segoe UI", Roboto, Arial, sans-serif; overflow-wrap: anywhere; }
h1 { font-size: 1.7rem; line-height: 1.2; margin: 0 0 .6rem; }
h2 { font-size: 1.2rem; margin: 2rem 0 .5rem; padding-top: .6rem; border-top: 1px solid var(--line); }
p, ul { margin: .5rem 0; max-width: 75ch; }
li { margin: .15rem 0; }
p.headline { background: var(--card); border-left: 4px solid var(--muted); border-radius: .3rem; padding: .6rem .9rem; }
code { background: var(--card); border-radius: .25rem; padding: .05rem .3rem; font-size: .9em; }
.scroll { overflow-x: auto; }
table { border-collapse: collapse; font-size: .9rem; font-variant-numeric: tabular-nums; overflow-wrap: normal; }
th, td { padding: .3rem .7rem; text-align: right; border-bottom: 1px solid var(--line); }
th:first-child, td:first-child { text-align: left; padding-left: 0; }
td:not(:first-child) { white-space: nowrap; }
small { color: var(--muted); font-size: .85em; }
th { font-weight: 600; vertical-align: bottom; border-bottom: 2px solid var(--muted); }
"""


def card_page(markdown: str) -> str:
    """The whole page."""
    blocks = [block.strip("\n") for block in re.split(r"\n{2,}", markdown) if block.strip()]
    title = next((block[2:] for block in blocks if block.startswith("# ")), "Model card")
    body = "\n".join(part for block in blocks for part in _block(block.splitlines()))
    return (
        '<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        f"<title>{escape(title)}</title>\n<style>{STYLE}</style>\n</head>\n<body>\n{body}\n</body>\n</html>\n"
    )


def _block(lines: Sequence[str]) -> Iterator[str]:
    first = lines[0]
    if heading := re.match(r"(#{1,3}) (.*)", first):
        size = len(heading[1])
        yield f"<h{size}>{_inline(heading[2])}</h{size}>"
        yield from _block(lines[1:]) if len(lines) > 1 else ()
    elif first.startswith("|"):
        yield _table(lines)
    elif first.startswith("- "):
        yield "<ul>" + "".join(f"<li>{_inline(line[2:])}</li>" for line in lines) + "</ul>"
    else:
        kind = ' class="headline"' if first.startswith("**") else ""
        yield f"<p{kind}>{_inline(' '.join(lines))}</p>"


def _table(lines: Sequence[str]) -> str:
    head, *rows = [_cells(line) for line in lines if not re.fullmatch(r"[|\-: ]+", line)]
    names = "".join(f'<th scope="col">{_inline(cell)}</th>' for cell in head)
    body = "".join("<tr>" + "".join(f"<td>{_value(cell)}</td>" for cell in row) + "</tr>" for row in rows)
    return f'<div class="scroll"><table><thead><tr>{names}</tr></thead><tbody>{body}</tbody></table></div>'


def _value(cell: str) -> str:
    """An interval goes below its value."""
    parts = re.fullmatch(r"([^\s()]+) (\(\S+ to \S+\))", cell)
    return f"{parts[1]}<br><small>{parts[2]}</small>" if parts else _inline(cell)


def _cells(line: str) -> list[str]:
    return [cell.strip().replace("\\|", "|") for cell in re.split(r"(?<!\\)\|", line)[1:-1]]


def _inline(text: str) -> str:
    text = escape(text)
    text = re.sub(r"`([^`]+)`", r"<code>\1</code>", text)
    return re.sub(r"\*\*(.+?)\*\*", r"<strong>\1</strong>", text)
