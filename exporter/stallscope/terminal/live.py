"""The live screen, drawn by Textual: lines of which only those that changed are drawn anew, and nothing that moves.

Colours are the terminal's own sixteen where they say good or bad, so that they suit its ground; without colours the
same screen is told by bold, dim and reverse.
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

from stallscope.catalogue.causes import PHASE_COLOURS
from stallscope.common.formatting import readable
from stallscope.terminal.feed import Seen
from stallscope.terminal.gpu_lines import SORTS
from stallscope.terminal.lines import ASCII, Line, Span, line
from stallscope.terminal.screen import Screen
from stallscope.terminal.views import HELP, VIEWS, title
from stallscope.view.verdicts import RunName, Verdicts

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
"""On every phase's colour at a contrast of 4.5 to 1; the terminal's own black may be a grey."""
_OWN_PHASE = Style(color="white", bgcolor="grey37")
_UNTIL_DRAWN_ANEW = 2.0
"""Seconds without any answer after which ages are drawn anew."""


class LiveFeed(Protocol):
    """Where news come from; `stallscope.terminal.feed.Feed` is one."""

    def start(self, changed: Callable[[], object]) -> None:
        """Ask from now on, and call after every answer."""

    def stop(self) -> None:
        """Ask no more."""

    def look(self) -> Seen:
        """What is known now."""


class LiveVerdicts(Protocol):
    """Who knows verdicts; `stallscope.view.verdicts.VerdictWatch` is one."""

    def start(self) -> None:
        """Ask from now on, while somebody looks."""

    def stop(self) -> None:
        """Ask no more."""

    def look(self, runs: Sequence[RunName], gpus: Sequence[str]) -> Verdicts:
        """What is known now."""


class _Lines(ScrollView):
    """Lines, of which those that change are drawn."""

    DEFAULT_CSS = "_Lines { scrollbar-size: 0 0; overflow-x: hidden; }"

    def __init__(self, style_of: Callable[[str], Style], *, id: str) -> None:  # noqa: A002 - Textual's own name for it
        super().__init__(id=id)
        self._style_of = style_of
        self._lines: list[Line] = []

    def show(self, lines: list[Line]) -> None:
        """Put other lines in the place of these."""
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
        """How many are to be scrolled to."""
        return max(0, len(self._lines) - self.scroll_offset.y - self.size.height)

    def render_line(self, y: int) -> Strip:
        """One line, as wide as the screen."""
        place = y + self.scroll_offset.y
        spans = self._lines[place] if place < len(self._lines) else ()
        return Strip([Segment(span.text, self._style_of(span.role)) for span in spans]).adjust_cell_length(
            self.size.width
        )


class Top(App[None]):
    """See the module."""

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
        # Before the screen's own, which go from widget to widget.
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
        """A feed has something new."""

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
        """Prepare; nothing is asked yet.

        Args:
            feeds: one for each exporter.
            verdicts: who knows verdicts, where somebody does.
            owner: whose GPUs and runs to show at first; empty for all.
            colours: whether the terminal's colours are used.
            ascii_only: whether the terminal has no other characters.
            clock: the time of day, as it is shown.
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
        """Head, body, and a line of keys, whose place the filter takes while it is typed."""
        yield _Lines(self._style_of, id="head")
        yield _Lines(self._style_of, id="body")
        yield _Lines(self._style_of, id="keys")
        yield Input(placeholder="owner, or nothing for all; Enter", id="filter", select_on_focus=False)

    def on_mount(self) -> None:
        """Begin to ask."""
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGHUP):
            with suppress(ValueError, RuntimeError):  # tests may run on another thread than the main one
                loop.add_signal_handler(number, self.exit)
        # Whoever had the terminal meanwhile left nothing of what was drawn.
        self.app_resume_signal.subscribe(self, lambda _: self.refresh(layout=True))
        self.set_focus(None)
        for feed in self._feeds:
            feed.start(lambda: self.post_message(self.Answered()))
        if self._verdicts is not None:
            self._verdicts.start()
        self.set_interval(_UNTIL_DRAWN_ANEW, self._draw_ages)
        self._draw()

    def on_unmount(self) -> None:
        """Ask no more."""
        for feed in self._feeds:
            feed.stop()
        if self._verdicts is not None:
            self._verdicts.stop()

    def on_top_answered(self) -> None:
        """Show what is new."""
        if self._paused is None:
            self._draw()

    def on_resize(self, _event: Resize) -> None:
        """Lay everything out anew, once the widgets have their new sizes."""
        self.call_after_refresh(self._draw)

    def on_input_submitted(self, event: Input.Submitted) -> None:
        """Show what belongs to that owner."""
        self._owner = event.value.strip()
        self._end_filter()

    def action_pause(self) -> None:
        """Keep what is shown, or go on."""
        self._paused = (self._screen(), self._clock()) if self._paused is None else None
        self._draw()

    def action_sort(self) -> None:
        """Sort GPUs by the next thing."""
        self._sort = SORTS[(SORTS.index(self._sort) + 1) % len(SORTS)]
        self._draw()

    def action_filter(self) -> None:
        """Ask whose GPUs and runs to show."""
        field = self.query_one("#filter", Input)
        field.value = self._owner
        self.query_one("#keys").display = False
        field.display = True
        field.focus()

    def action_help(self) -> None:
        """Show what keys and columns mean, or go back."""
        self._helping = not self._helping
        self._to_the_top()

    def action_leave(self) -> None:
        """Leave the filter or the help."""
        self._helping = False
        self._end_filter()

    def action_view(self, step: int) -> None:
        """Go to a view beside this one."""
        self._helping = False
        self._view = (self._view + step) % len(VIEWS)
        self._to_the_top()

    def action_scroll(self, lines: int) -> None:
        """Move by lines."""
        body = self.query_one("#body", _Lines)
        body.scroll_to(y=body.scroll_offset.y + lines, animate=False)
        self.call_after_refresh(self._draw_keys)

    def action_page(self, pages: int) -> None:
        """Move by pages."""
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
        """While an exporter hangs nothing is answered, and what is shown grows old all the same."""
        if not self._drawn and self._paused is None:
            self._draw()
        self._drawn = False

    def _screen(self) -> Screen:
        seen = tuple(feed.look() for feed in self._feeds)
        screen = Screen(seen, None)
        # The first question would be an empty one, and the next some time later.
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
        said = {
            "q": "quit",
            "←→": "view",
            "↑↓": f"{below} more" if below else "scroll",
            "s": f"sort: {self._sort}",
            "f": f"owner: {readable(self._owner, 20)}" if self._owner else "filter",
            "p": "go on" if self._paused else "pause",
            "?": "help",
        }
        for key, what in said.items():
            yield Span(key, "title")
            yield Span(f" {what}  ", "quiet")

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
