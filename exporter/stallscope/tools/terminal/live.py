"""The live screen, drawn by Textual. Only changed lines are redrawn, and nothing is animated.

Status colours are the terminal's own sixteen, which suit its background. Without colours, the screen uses bold, dim and
reverse.
"""

from __future__ import annotations

import asyncio
import signal
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import ClassVar, Protocol

from rich.segment import Segment
from rich.style import Style
from textual.app import App, ComposeResult
from textual.binding import Binding, BindingType
from textual.events import Resize
from textual.geometry import Size
from textual.message import Message
from textual.scroll_view import ScrollView
from textual.strip import Strip
from textual.widgets import Input

from stallscope.common.formatting import readable
from stallscope.model.catalogue.causes import PHASE_COLOURS
from stallscope.model.view.verdicts import RunName, Verdicts
from stallscope.tools.terminal.feed import ExporterState
from stallscope.tools.terminal.gpu_lines import SORTS
from stallscope.tools.terminal.lines import ASCII, Line, Span, line
from stallscope.tools.terminal.screen import Screen
from stallscope.tools.terminal.views import HELP, VIEWS, title

_STYLES = {
    "title": Style(bold=True),
    "head": Style(underline=True),
    "good": Style(color="green"),
    "warn": Style(color="yellow"),
    "bad": Style(color="red", bold=True),
    "quiet": Style(dim=True),
    "stale": Style(dim=True, italic=True),
    "bar": Style(color="cyan"),
    "track": Style(dim=True),
    "chosen": Style(reverse=True),
}
_INK = "#000000"
"""Text colour on phase colours, with a contrast of at least 4.5 to 1; the terminal's own black may be a grey."""
_OWN_PHASE = Style(color="white", bgcolor="grey37")
_AGE_REDRAW_SECONDS = 2.0
"""Time without a poll result after which ages are redrawn."""


class LiveFeed(Protocol):
    """A source of exporter states; `stallscope.tools.terminal.feed.Feed` is one."""

    def start(self, changed: Callable[[], object]) -> None:
        """Start polling, and call `changed` after every poll."""

    def stop(self) -> None:
        """Stop polling."""

    def look(self) -> ExporterState:
        """Return the current state."""


class LiveVerdicts(Protocol):
    """A source of verdicts; `stallscope.model.view.verdicts.VerdictWatch` is one."""

    def start(self) -> None:
        """Start querying."""

    def stop(self) -> None:
        """Stop querying."""

    def look(self, runs: Sequence[RunName], gpus: Sequence[str]) -> Verdicts:
        """Return the latest verdicts."""


class _Lines(ScrollView):
    """A scrollable list of lines, of which only changed ones are redrawn."""

    DEFAULT_CSS = "_Lines { scrollbar-size: 0 0; overflow-x: hidden; }"

    def __init__(self, style_of: Callable[[str], Style], *, id: str) -> None:  # noqa: A002 - Textual's own name for it
        super().__init__(id=id)
        self._style_of = style_of
        self._lines: list[Line] = []

    def show(self, lines: list[Line]) -> None:
        """Replace the lines."""
        before, self._lines = self._lines, lines
        if len(lines) != len(before):
            self.virtual_size = Size(self.size.width, len(lines))
            self.refresh()
            return
        for place, (old, new) in enumerate(zip(before, lines, strict=True)):
            if old != new:
                self.refresh_lines(place)

    @property
    def below(self) -> int:
        """Number of lines below the visible part."""
        return max(0, len(self._lines) - self.scroll_offset.y - self.size.height)

    def render_line(self, y: int) -> Strip:
        """Draw one line in the width of the screen."""
        place = y + self.scroll_offset.y
        spans = self._lines[place] if place < len(self._lines) else ()
        return Strip([Segment(span.text, self._style_of(span.role)) for span in spans]).adjust_cell_length(
            self.size.width
        )


class Top(App[None]):
    """The application of `stallscope top`."""

    ENABLE_COMMAND_PALETTE = False
    CSS = """
    Screen { layout: vertical; background: ansi_default; color: ansi_default; overflow: hidden; }
    #head { height: 2; }
    #body { height: 1fr; }
    #keys { height: 1; }
    #filter { height: 1; border: none; padding: 0; display: none; background: ansi_default; color: ansi_default; }
    _Lines { background: ansi_default; color: ansi_default; }
    """
    BINDINGS: ClassVar[list[BindingType]] = [
        ("q,ctrl+c", "quit", "quit"),
        ("p,space", "pause", "pause"),
        ("s", "sort", "sort"),
        ("f,slash", "filter", "filter"),
        ("question_mark,h", "help", "help"),
        ("right", "view(1)", "next view"),
        ("left", "view(-1)", "view before"),
        # Take precedence over the screen's own bindings, which move the focus between widgets.
        Binding("tab", "view(1)", "next view", priority=True),
        Binding("shift+tab", "view(-1)", "view before", priority=True),
        ("down,j", "scroll(1)", "down"),
        ("up,k", "scroll(-1)", "up"),
        ("pagedown", "page(1)", "page down"),
        ("pageup", "page(-1)", "page up"),
        ("home", "scroll(-1000000)", "first line"),
        ("end", "scroll(1000000)", "last line"),
        ("escape", "leave", "back"),
        ("ctrl+z", "suspend_process", "suspend"),
    ]

    class Answered(Message):
        """A feed has a new state."""

    def __init__(
        self,
        feeds: Sequence[LiveFeed],
        verdicts: LiveVerdicts | None,
        *,
        owner: str = "",
        colours: bool = True,
        ascii_only: bool = False,
        clock: Callable[[], str] = lambda: time.strftime("%H:%M:%S"),
    ) -> None:
        """Prepare; nothing is requested yet.

        Args:
            feeds: one for each exporter.
            verdicts: source of verdicts, if any.
            owner: initial filter for GPUs and runs; empty for all.
            colours: use the terminal's colours.
            ascii_only: replace characters that are not ASCII.
            clock: returns the displayed time of day.
        """
        super().__init__(ansi_color=True)
        self.animation_level = "none"
        self._feeds = feeds
        self._verdicts = verdicts
        self._colours = colours
        self._ascii_only = ascii_only
        self._clock = clock
        self._styles: dict[str, Style] = {}
        self._view = 0
        self._helping = False
        self._paused: tuple[Screen, str] | None = None
        self._sort = SORTS[0]
        self._owner = owner
        self._drawn = False

    def compose(self) -> ComposeResult:
        """Create head, body, and the line of keys, which the filter replaces while it is edited."""
        yield _Lines(self._style_of, id="head")
        yield _Lines(self._style_of, id="body")
        yield _Lines(self._style_of, id="keys")
        yield Input(placeholder="part of an owner's name, empty for all; Enter", id="filter", select_on_focus=False)

    def on_mount(self) -> None:
        """Start the feeds."""
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGHUP):
            with suppress(ValueError, RuntimeError):  # tests may run on another thread than the main one
                loop.add_signal_handler(number, self.exit)
        # Another program may have overwritten the screen while this one was suspended.
        self.app_resume_signal.subscribe(self, lambda _: self.refresh(layout=True))
        self.set_focus(None)
        for feed in self._feeds:
            feed.start(lambda: self.post_message(self.Answered()))
        if self._verdicts is not None:
            self._verdicts.start()
        self.set_interval(_AGE_REDRAW_SECONDS, self._draw_ages)
        self._draw()

    def on_unmount(self) -> None:
        """Stop the feeds."""
        for feed in self._feeds:
            feed.stop()
        if self._verdicts is not None:
            self._verdicts.stop()

    def on_top_answered(self) -> None:
        """Redraw with the new state."""
        if self._paused is None:
            self._draw()

    def on_resize(self, _event: Resize) -> None:
        """Redraw once the widgets have their new sizes."""
        self.call_after_refresh(self._draw)

    def on_input_submitted(self, event: Input.Submitted) -> None:
        """Filter by the entered owner."""
        self._owner = event.value.strip()
        self._end_filter()

    def action_pause(self) -> None:
        """Pause or continue updates."""
        self._paused = (self._screen(), self._clock()) if self._paused is None else None
        self._draw()

    def action_sort(self) -> None:
        """Change the sort order of GPUs."""
        self._sort = SORTS[(SORTS.index(self._sort) + 1) % len(SORTS)]
        self._draw()

    def action_filter(self) -> None:
        """Edit the owner filter."""
        field = self.query_one("#filter", Input)
        field.value = self._owner
        self.query_one("#keys").display = False
        field.display = True
        field.focus()

    def action_help(self) -> None:
        """Show or hide the help."""
        self._helping = not self._helping
        self._to_the_top()

    def action_leave(self) -> None:
        """Leave the filter or the help."""
        self._helping = False
        self._end_filter()

    def action_view(self, step: int) -> None:
        """Switch to an adjacent view."""
        self._helping = False
        self._view = (self._view + step) % len(VIEWS)
        self._to_the_top()

    def action_scroll(self, lines: int) -> None:
        """Scroll by lines."""
        body = self.query_one("#body", _Lines)
        body.scroll_to(y=body.scroll_offset.y + lines, animate=False)
        self.call_after_refresh(self._draw_keys)

    def action_page(self, pages: int) -> None:
        """Scroll by pages."""
        self.action_scroll(pages * max(1, self.query_one("#body").size.height - 1))

    def _end_filter(self) -> None:
        self.query_one("#filter").display = False
        self.query_one("#keys").display = True
        self.set_focus(None)
        self._draw()

    def _to_the_top(self) -> None:
        self.query_one("#body", _Lines).scroll_to(y=0, animate=False)
        self._draw()

    def _draw_ages(self) -> None:
        """Redraw ages while an exporter hangs and no poll ends."""
        if not self._drawn and self._paused is None:
            self._draw()
        self._drawn = False

    def _screen(self) -> Screen:
        screen = Screen(tuple(feed.look() for feed in self._feeds), None)
        # A first query without subjects would delay the next one by the whole interval.
        if self._verdicts is None or not (screen.run_names or screen.gpu_names):
            return screen
        return replace(screen, verdicts=self._verdicts.look(screen.run_names, screen.gpu_names))

    def _draw(self) -> None:
        self._drawn = True
        screen, clock = self._paused or (self._screen(), self._clock())
        screen = screen.of(self._owner)
        paused = (Span("  paused", "warn"),) if self._paused else ()
        self._show("head", [(*title(screen, clock), *paused), line(*self._tabs())])
        lines = HELP if self._helping else list(VIEWS.values())[self._view](screen, self._sort, self.size.width)
        self._show("body", lines)
        self._draw_keys()

    def _draw_keys(self) -> None:
        self._show("keys", [line(*self._keys())])

    def _show(self, where: str, lines: list[Line]) -> None:
        if self._ascii_only:
            lines = [tuple(Span(span.text.translate(ASCII), span.role) for span in each) for each in lines]
        self.query_one(f"#{where}", _Lines).show(lines)

    def _tabs(self) -> Iterator[Span]:
        for place, name in enumerate(VIEWS):
            chosen = place == self._view and not self._helping
            yield Span(f"[{name}]" if chosen else f" {name} ", "chosen" if chosen else "")
            yield Span(" ")

    def _keys(self) -> Iterator[Span]:
        below = self.query_one("#body", _Lines).below
        keys = {
            "q": "quit",
            "←→": "view",
            "↑↓": f"{below} more" if below else "scroll",
            "s": f"sort: {self._sort}",
            "f": f"owner: {readable(self._owner, 20)}" if self._owner else "filter",
            "p": "continue" if self._paused else "pause",
            "?": "help",
        }
        for key, action in keys.items():
            yield Span(key, "title")
            yield Span(f" {action}  ", "quiet")

    def _style_of(self, role: str) -> Style:
        style = self._styles.get(role)
        if style is None:
            kind, _, phase = role.partition(":")
            if kind == "phase":
                colour = PHASE_COLOURS.get(phase)
                style = Style(color=_INK, bgcolor=colour) if colour else _OWN_PHASE
            else:
                style = _STYLES.get(role, Style.null())
            if not self._colours:
                style = style.without_color
            self._styles[role] = style
        return style
