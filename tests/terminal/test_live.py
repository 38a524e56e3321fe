"""The live screen, driven by Textual's pilot: keys, sizes, and the loss of an exporter."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Sequence

import pytest
from textual.pilot import Pilot
from textual.strip import Strip
from textual.widgets import Input

from stallscope.model.view.model import Node
from stallscope.model.view.verdicts import RunName, Verdicts
from stallscope.tools.terminal.feed import ExporterState
from stallscope.tools.terminal.lines import plain
from stallscope.tools.terminal.live import Top
from stallscope.tools.terminal.views import HELP
from tests.terminal.pages import node
from tests.terminal.test_views import LATER, OVERVIEW, VERDICTS

CLOCK = "12:34:56"
Steps = Callable[[Pilot[None]], Awaitable[None]]


class FakeFeed:
    """A feed whose state a test sets."""

    def __init__(self, found: Node | None = None) -> None:
        self.state = ExporterState("node1:19400", found, None if found is None else 0.4, "")
        self.changed: Callable[[], object] | None = None
        self.stopped = False

    def start(self, changed: Callable[[], object]) -> None:
        self.changed = changed

    def stop(self) -> None:
        self.stopped = True

    def look(self) -> ExporterState:
        return self.state

    async def update(self, pilot: Pilot[None], **changes: object) -> None:
        """Change the state from another thread, as a feed does."""
        self.state = self.state._replace(**changes)  # type: ignore[arg-type]
        assert self.changed is not None
        await asyncio.to_thread(self.changed)
        await pilot.pause()


class FakeVerdicts:
    """A source of fixed verdicts."""

    def __init__(self) -> None:
        self.requested: list[tuple[list[RunName], list[str]]] = []

    def start(self) -> None:
        """Do nothing."""

    def stop(self) -> None:
        """Do nothing."""

    def look(self, runs: Sequence[RunName], gpus: Sequence[str]) -> Verdicts:
        self.requested.append((list(runs), list(gpus)))
        return VERDICTS


def strips(app: Top) -> list[Strip]:
    """Return the lines on the screen."""
    return [
        widget.render_line(y)
        for widget in (app.query_one(f"#{name}") for name in ("head", "body", "keys"))
        for y in range(widget.size.height)
    ]


def screen(pilot: Pilot[None]) -> str:
    app = pilot.app
    assert isinstance(app, Top)
    return "\n".join(strip.text.rstrip() for strip in strips(app))


async def shown(pilot: Pilot[None], wanted: Callable[[str], object]) -> str:
    """Wait for a condition on the screen's text, and return the text."""
    deadline = time.monotonic() + 120
    while not wanted(said := screen(pilot)):
        assert time.monotonic() < deadline, said
        await pilot.pause()
    return said


def below(said: str) -> int:
    """Return the displayed number of lines below the screen."""
    keys = said.splitlines()[-1]
    return int(keys.partition("↑↓ ")[2].partition(" more")[0]) if " more" in keys else 0


def live(feed: FakeFeed, steps: Steps, *, size: tuple[int, int] = (80, 24), **settings: object) -> Top:
    app = Top([feed], settings.pop("verdicts", None), clock=lambda: CLOCK, **settings)  # type: ignore[arg-type]

    async def run() -> None:
        async with app.run_test(size=size) as pilot:
            await pilot.pause()
            await steps(pilot)

    asyncio.run(run())
    return app


KEYS = "q quit  ←→ view  ↑↓ scroll  s sort: number  f filter  p pause  ? help"
HEAD = f"stallscope top  {CLOCK}  2 GPUs  1 run\n[Overview]  GPUs   Runs   Owners   Nodes\n"


def test_everything_is_on_one_screen_of_80_by_24() -> None:
    async def steps(pilot: Pilot[None]) -> None:
        below = 24 - 3 - len(OVERVIEW.splitlines())
        await shown(pilot, lambda said: said == HEAD + OVERVIEW + "\n" * (below + 1) + KEYS)

    live(FakeFeed(node(*LATER)), steps)


def test_a_wider_screen_has_the_verdicts_in_the_table() -> None:
    verdicts = FakeVerdicts()

    async def steps(pilot: Pilot[None]) -> None:
        said = await shown(pilot, lambda said: "alice, job 41 Slowed by heat, 13 %\n" in said)
        assert len(said.splitlines()) == 40

    live(FakeFeed(node(*LATER)), steps, size=(120, 40), verdicts=verdicts)
    assert verdicts.requested[-1] == ([RunName("resnet50", "")], ["GPU-0", "GPU-1"])


def test_no_verdicts_are_queried_before_the_first_page() -> None:
    verdicts, feed = FakeVerdicts(), FakeFeed()

    async def steps(pilot: Pilot[None]) -> None:
        assert not verdicts.requested
        await feed.update(pilot, node=node(*LATER), age=0.4)
        await shown(pilot, lambda _: verdicts.requested)

    live(feed, steps, verdicts=verdicts)


def test_a_resized_screen_is_redrawn() -> None:
    async def steps(pilot: Pilot[None]) -> None:
        await pilot.resize_terminal(60, 30)
        lines = (await shown(pilot, lambda said: "alice, job…\n" in said and said.count("\n") == 29)).splitlines()
        assert max(len(line) for line in lines) <= 60
        assert any(line.startswith("1 ") and line.endswith("alice, job…") for line in lines)

    live(FakeFeed(node(*LATER)), steps)


@pytest.mark.parametrize(
    ("keys", "chosen"),
    [
        (["right"], "GPUs"),
        (["tab", "tab"], "Runs"),
        (["left"], "Nodes"),
        (["shift+tab", "shift+tab"], "Owners"),
        (["right"] * 5, "Overview"),
    ],
)
def test_arrows_and_tab_go_from_view_to_view(keys: list[str], chosen: str) -> None:
    async def steps(pilot: Pilot[None]) -> None:
        await pilot.press(*keys)
        await shown(pilot, lambda said: f"[{chosen}]" in said.splitlines()[1])

    live(FakeFeed(node(*LATER)), steps)


def test_a_long_view_is_scrolled() -> None:
    async def steps(pilot: Pilot[None]) -> None:
        await pilot.press("right")
        begun = below(await shown(pilot, lambda said: "GPU 0   NVIDIA" in said and below(said)))
        await pilot.press("down")
        await shown(pilot, lambda said: below(said) == begun - 1)
        await pilot.press("pagedown")
        await shown(pilot, lambda said: "GPU 0   NVIDIA" not in said)
        await pilot.press("end")
        await shown(pilot, lambda said: "GPU 7   NVIDIA" in said and below(said) == 0)
        await pilot.press("home", "down")
        await shown(pilot, lambda said: said.splitlines()[2].startswith("GPU 0"))

    live(FakeFeed(node(*LATER, gpus=8)), steps)


def test_a_view_that_becomes_short_is_not_scrolled_past_its_end() -> None:
    feed = FakeFeed(node(*LATER, gpus=8))

    async def steps(pilot: Pilot[None]) -> None:
        await pilot.press("right", "end")
        await shown(pilot, lambda said: "GPU 7   NVIDIA" in said)
        await feed.update(pilot, node=node(*LATER, gpus=1))
        await shown(pilot, lambda said: said.splitlines()[3].startswith("GPU 0   NVIDIA"))

    live(feed, steps)


def test_the_sort_order_is_shown_next_to_its_key() -> None:
    async def steps(pilot: Pilot[None]) -> None:
        await pilot.press("s", "s")
        said = await shown(pilot, lambda said: "s sort: memory" in said.splitlines()[-1])
        assert said.splitlines()[6].startswith("1 ")

    live(FakeFeed(node(*LATER)), steps)


def test_owners_are_filtered_by_part_of_the_name() -> None:
    async def steps(pilot: Pilot[None]) -> None:
        field = pilot.app.query_one("#filter", Input)
        await pilot.press("f")
        await shown(pilot, lambda _: field.display and field.has_focus)
        await pilot.press(*"alice")
        await shown(pilot, lambda _: field.value == "alice")
        await pilot.press("enter")
        said = await shown(pilot, lambda said: "1 GPU  0 runs" in said and "f owner: alice" in said)
        assert "bob" not in said
        await pilot.press("f")
        await shown(pilot, lambda _: field.has_focus)
        await pilot.press(*["backspace"] * 5, "enter")
        await shown(pilot, lambda said: "2 GPUs  1 run" in said and not field.display)
        await pilot.press("f")
        await shown(pilot, lambda _: field.has_focus)
        await pilot.press(*"qp")  # these are key bindings outside of the filter
        await shown(pilot, lambda _: field.value == "qp")
        await pilot.press("escape")
        await shown(pilot, lambda said: "2 GPUs  1 run\n" in said and not field.display)

    live(FakeFeed(node(*LATER)), steps)


def test_help_comes_and_goes() -> None:
    async def steps(pilot: Pilot[None]) -> None:
        await pilot.press("question_mark")
        help_on_slowed = "Slowed     share of the last seconds in which clocks were throttled"
        await shown(pilot, lambda said: help_on_slowed in said)
        assert max(len(plain(each)) for each in HELP) <= 80
        await pilot.press("escape")
        await shown(pilot, lambda said: said.startswith(HEAD))

    live(FakeFeed(node(*LATER)), steps)


def test_new_states_are_shown() -> None:
    feed = FakeFeed()

    async def steps(pilot: Pilot[None]) -> None:
        await shown(pilot, lambda said: "node1:19400  connecting" in said)
        await feed.update(pilot, node=node(*LATER), age=0.4)
        await shown(pilot, lambda said: "step 2,080 of 10,000" in said)

    live(feed, steps)
    assert feed.stopped


def test_a_pause_keeps_what_is_shown() -> None:
    feed = FakeFeed(node(*LATER))

    async def steps(pilot: Pilot[None]) -> None:
        await pilot.press("p")
        before = await shown(pilot, lambda said: "paused" in said.splitlines()[0])
        await feed.update(pilot, node=node(1000))
        assert screen(pilot) == before
        await pilot.press("p")
        await shown(pilot, lambda said: "step 2,000 of 10,000" in said)

    live(feed, steps)


def test_a_lost_exporter_leaves_the_last_values_with_their_age() -> None:
    feed = FakeFeed(node(*LATER))

    async def steps(pilot: Pilot[None]) -> None:
        await feed.update(pilot, problem="no answer within 5 s", age=14.2)
        head = "node1:19400: no answer within 5 s. The values shown are 14 s old."
        assert "step 2,080 of 10,000" in await shown(pilot, lambda said: head in said)
        await feed.update(pilot, problem="", age=0.1)
        await shown(pilot, lambda said: said.startswith(HEAD + OVERVIEW))

    live(feed, steps)


@pytest.mark.parametrize("colours", [True, False])
def test_without_colours_there_are_none(colours: bool) -> None:
    feed = FakeFeed(node(*LATER))

    async def steps(pilot: Pilot[None]) -> None:
        await shown(pilot, lambda said: said.startswith(HEAD))
        app = pilot.app
        assert isinstance(app, Top)
        styles = [segment.style for strip in strips(app) for segment in strip if segment.style is not None]
        assert any(style.color or style.bgcolor for style in styles) is colours
        assert any(style.bold for style in styles)

    live(feed, steps, colours=colours)


def test_a_terminal_without_unicode() -> None:
    async def steps(pilot: Pilot[None]) -> None:
        assert (await shown(pilot, lambda said: "#######" in said)).isascii()

    live(FakeFeed(node(*LATER)), steps, ascii_only=True)


def test_q_ends_it() -> None:
    async def steps(pilot: Pilot[None]) -> None:
        await pilot.press("q")
        deadline = time.monotonic() + 120
        while pilot.app.is_running:
            assert time.monotonic() < deadline
            await asyncio.sleep(0.01)

    assert live(FakeFeed(node(*LATER)), steps).return_code == 0
