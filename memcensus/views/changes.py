"""A difference in a terminal: what grew in red, what shrank in green, and the sum as last line."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rich.table import Table as Grid
from rich.text import Text

from memcensus import units
from memcensus.text import printable
from memcensus.views.select import row_matches
from memcensus.views.table import in_words
from memcensus.views.tree import console

if TYPE_CHECKING:
    from typing import TextIO

    from memcensus.model import Path
    from memcensus.subject import Look
    from memcensus.views.diff import Change, Difference, RowChange


def render(difference: Difference, out: TextIO, look: Look) -> None:
    """Write the difference for a terminal; the last line sums it up."""
    terminal = console(out, look)
    grid = Grid(box=None, padding=(0, 2, 0, 0), pad_edge=False, header_style="bold")
    for name in ("change", "before", "after"):
        grid.add_column(name, justify="right", no_wrap=True)
    grid.add_column("account", overflow="fold")
    shown = [c for c in difference.accounts if _in_focus(c.path, look)]
    for change in shown:
        grid.add_row(*_account_row(change))
    if shown:
        terminal.print(grid)
    for row_change in difference.rows:
        if row_matches(row_change.row, look.focus):
            terminal.print(_row_line(row_change))
    terminal.print(Text(_summary(difference), style="bold"), soft_wrap=True)


def _in_focus(path: Path, look: Look) -> bool:
    return look.focus is None or bool(look.focus.search("/".join(path)))


def _account_row(change: Change) -> tuple[Text, Text, Text, Text]:
    style = "red" if change.delta > 0 else "green"
    return (
        Text(_signed(change.delta), style=style),
        Text("absent" if change.before is None else units.size(change.before)),
        Text("absent" if change.after is None else units.size(change.after)),
        Text(printable(" / ".join(change.path) or "(root)")),
    )


def _row_line(change: RowChange) -> Text:
    cells = (in_words(c, col) for c, col in zip(change.row, change.table.columns, strict=True))
    text = f"{change.sign} {printable(change.table.name)}: {'  '.join(cells)}"
    return Text(text, style="green" if change.sign == "-" else "red")


def _signed(delta: int) -> str:
    return f"+{units.size(delta)}" if delta > 0 else units.size(delta)


def _summary(difference: Difference) -> str:
    before, after = difference.before.root.total, difference.after.root.total
    if difference.empty:
        return "no difference"
    change = _signed(after - before) if after != before else "the same total"
    return (
        f"{len(difference.accounts)} accounts and {len(difference.rows)} rows differ; "
        f"{units.size(before)} before, {units.size(after)} after: {change}"
    )
