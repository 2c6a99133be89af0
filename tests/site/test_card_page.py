"""A model card in the browser: what the Markdown says, escaped, whole on a phone."""

from __future__ import annotations

import re
from pathlib import Path

from browser import FAINT, OVERFLOW, PHONE, WIDE, Looker
from fedapa.site.card_page import card_page

CARD = """# Model of <b>north</b>

**Verdict: use `alone` & nothing else.**

## Score on rows never trained on

| trained | AUC | a name that | holds \\| a bar and is longer than any phone is wide |
|---|---|---|---|
| alone (local) | 0.500 (0.400 to 0.600) | 1 | 2 |

- AUC: 0.5 is guessing.
- left: <script>alert(1)</script>

## Rows
Beside the heading.
"""


def test_markdown_becomes_a_page_and_nothing_in_it_is_markup() -> None:
    page = card_page(CARD)
    for part in (
        "<title>Model of &lt;b&gt;north&lt;/b&gt;</title>",
        '<p class="headline"><strong>Verdict: use <code>alone</code> &amp; nothing else.</strong></p>',
        '<th scope="col">holds | a bar and is longer than any phone is wide</th>',
        "<td>0.500<br><small>(0.400 to 0.600)</small></td>",
        "<li>left: &lt;script&gt;alert(1)&lt;/script&gt;</li>",
        "<h2>Rows</h2>\n<p>Beside the heading.</p>",
    ):
        assert part in page
    assert not re.search(r"<script|<b>|\*\*|src=|href=", page)
    assert page.count("<tr>") == 2


def test_a_card_fits_every_screen(tmp_path: Path, browser: Looker) -> None:
    path = tmp_path / "card.html"
    path.write_text(card_page(CARD), encoding="utf-8")
    for width, scheme in ((WIDE, "light"), (PHONE, "light"), (PHONE, "dark")):
        with browser.look(path.as_uri(), width, scheme) as tab:
            assert tab.evaluate(OVERFLOW) <= 0, width
            assert tab.evaluate(FAINT) == []
        assert browser.faults == []
