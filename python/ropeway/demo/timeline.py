"""Draws who held which slot when."""

from statistics import fmean

from PIL import Image, ImageDraw, ImageFont

from .handoff import HandOff
from .spans import FILLING, FREE, READY, TRAINING, WAITING, Span, overlap, process_rows, slot_rows
from .summary import Death, seconds, successor

WIDTH = 1800
LEFT, RIGHT, TOP, GAP = 120, 40, 118, 62
ROW, BAR = 34, 24  # height of a row, and of the bar in it
CURVE = 130  # height of the loss curve
CLOSE_UP = 2_500_000_000  # ns shown in the close-up

PAPER, INK, FAINT, GRID, DEAD = "#ffffff", "#1f2933", "#66727f", "#e3e7eb", "#c62828"
COLOURS = {
    FILLING: "#f2a33a",
    READY: "#a8d5a2",
    TRAINING: "#3f72af",
    FREE: "#e9ecef",
    WAITING: "#e9ecef",
}
LEGEND = (
    (FREE, "slot waits to be filled, process waits"),
    (FILLING, "loaders fill it"),
    (READY, "ready"),
    (TRAINING, "the trainer learns from it"),
)


def font(size: int) -> ImageFont.ImageFont | ImageFont.FreeTypeFont:
    """Gives Pillow's own font."""
    return ImageFont.load_default(size)


class Sheet:
    """The picture while it is being drawn, from top to bottom."""

    def __init__(self, height: int, start: int):
        self.image = Image.new("RGB", (WIDTH, height), PAPER)
        self.pen = ImageDraw.Draw(self.image)
        self.start = start
        self.y = TOP

    def heading(self, title: str, subtitle: str) -> None:
        """Writes the title and the legend."""
        self.pen.text((LEFT, 18), title, INK, font(26))
        self.pen.text((LEFT, 54), subtitle, FAINT, font(17))
        x: float = LEFT
        for stage, text in LEGEND:
            self.pen.rectangle((x, 84, x + 22, 98), COLOURS[stage])
            self.pen.text((x + 30, 91), text, INK, font(15), anchor="lm")
            x += 62 + self.pen.textlength(text, font(15))


class Panel:
    """Rows over a common axis of time."""

    def __init__(self, sheet: Sheet, title: str, begin: int, end: int, height: int):
        self.sheet, self.pen = sheet, sheet.pen
        self.begin, self.end = begin, max(end, begin + 1)
        self.top = sheet.y + 30
        self.bottom = self.top + height
        sheet.y = self.bottom + GAP - 30
        self.pen.text((LEFT, self.top - 8), title, INK, font(17), anchor="ls")
        self._axis()

    def x(self, time: int) -> float:
        """Places a time, kept within the panel."""
        share = (min(max(time, self.begin), self.end) - self.begin) / (self.end - self.begin)
        return LEFT + share * (WIDTH - LEFT - RIGHT)

    def _axis(self) -> None:
        step = tick_step(seconds(self.end - self.begin))
        first = int(seconds(self.begin - self.sheet.start) / step + 0.999)
        last = int(seconds(self.end - self.sheet.start) / step)
        for number in range(first, last + 1):
            x = self.x(self.sheet.start + int(number * step * 1e9))
            self.pen.line((x, self.top, x, self.bottom + 4), GRID)
            self.pen.text(
                (x, self.bottom + 6), f"{number * step:g} s", FAINT, font(14), anchor="mt"
            )

    def rows(self, rows: dict[str, list[Span]], labelled: bool = False) -> None:
        """Draws rows of bars, with texts in them where asked and where they fit."""
        for number, (name, spans) in enumerate(rows.items()):
            middle = self.top + number * ROW + ROW / 2
            self.pen.text((LEFT - 12, middle), name, INK, font(16), anchor="rm")
            for span in spans:
                if span.start < self.end and span.end > self.begin:
                    self._bar(span, middle, labelled)

    def _bar(self, span: Span, middle: float, labelled: bool) -> None:
        left, right = self.x(span.start), self.x(span.end)
        top, bottom = middle - BAR / 2, middle + BAR / 2
        thin = 6 if span.stage in (FREE, WAITING) else 0
        self.pen.rectangle(
            (left, top + thin, max(left, right - 1), bottom - thin), COLOURS[span.stage]
        )
        if right - left > 6 and not thin:
            self.pen.line((left, top, left, bottom), PAPER)  # parts it from the one before
        ink = PAPER if span.stage == TRAINING else INK
        for text in (span.text, span.text.split(" ")[0]) if labelled else ():
            if self.pen.textlength(text, font(14)) < right - left - 6:
                self.pen.text(((left + right) / 2, middle), text, ink, font(14), anchor="mm")
                return

    def deaths(self, deaths: list[Death], rows: list[str]) -> None:
        """Marks where loaders were killed, with the story above the panel."""
        for death in deaths:
            if self.begin <= death.time <= self.end:
                x, row = self.x(death.time), rows.index(f"loader {death.loader}")
                top = self.top + row * ROW
                self.pen.line((x, self.top - 6, x, top), DEAD)
                self.pen.line((x, top, x, top + ROW), DEAD, 3)
                text = f"pid {death.pid} {death.how}; {successor(death)}"
                side = "ls" if x < WIDTH * 2 / 3 else "rs"
                self.pen.text((x, self.top - 9), text, DEAD, font(14), anchor=side)

    def curve(self, points: list[tuple[int, float]], guess: float) -> None:
        """Draws values over time, and what guessing gives."""
        highest = max(guess * 1.2, *(value for _, value in points))
        scale = (self.bottom - self.top) / highest
        level = self.bottom - guess * scale
        small = font(14)
        self.pen.line((LEFT, self.bottom, WIDTH - RIGHT, self.bottom), GRID)
        for x in range(LEFT, WIDTH - RIGHT, 12):
            self.pen.line((x, level, x + 5, level), FAINT)
        self.pen.text((LEFT - 12, level), f"{guess:.2f}", FAINT, small, anchor="rm")
        self.pen.text((LEFT - 12, self.bottom), "0", FAINT, small, anchor="rm")
        self.pen.text((WIDTH - RIGHT, level - 4), "always guessing 0°", FAINT, small, anchor="rs")
        line = [(self.x(time), self.bottom - value * scale) for time, value in points]
        self.pen.line(line, COLOURS[TRAINING], 3, joint="curve")


def tick_step(length: float) -> float:
    """Chooses the seconds between ticks, for about ten of them."""
    return next(
        (
            step
            for step in (0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1, 2, 5, 10, 20, 60)
            if length / step <= 15
        ),
        300,
    )


def smoothed(handoffs: list[HandOff], over: int = 8) -> list[tuple[int, float]]:
    """Gives the loss over time, each point a mean of a few batches."""
    groups = [handoffs[max(0, i + 1 - over) : i + 1] for i in range(len(handoffs))]
    return [(group[-1].released, fmean(h.loss for h in group)) for group in groups]


def close_up(handoffs: list[HandOff], deaths: list[Death]) -> tuple[int, int]:
    """Chooses the stretch that is shown large: around the first death, or the middle of the run."""
    first, last = handoffs[0].began, handoffs[-1].released
    middle = deaths[0].time if deaths else (first + last) // 2
    begin = max(first, min(middle - CLOSE_UP // 2, last - CLOSE_UP))
    return begin, min(last, begin + CLOSE_UP)


def within(rows: dict[str, list[Span]], begin: int, end: int) -> dict[str, list[Span]]:
    """Chooses the rows in which something happens meanwhile."""
    return {
        name: row
        for name, row in rows.items()
        if any(span.start < end and span.end > begin for span in row)
    }


def draw(handoffs: list[HandOff], deaths: list[Death], start: int) -> Image.Image:
    """Draws the timeline of a run; there must be at least one hand-off."""
    slots, processes = slot_rows(handoffs), process_rows(handoffs)
    close = close_up(handoffs, deaths)
    both = within(slots, *close) | {"": []} | processes
    heights = [ROW * len(slots), ROW * len(processes), CURVE, ROW * len(both)]
    sheet = Sheet(TOP + sum(heights) + GAP * len(heights), start)
    sheet.heading(
        "Who held which slot when",
        f"{len(handoffs):,} batches handed over. For {overlap(handoffs):.0%} of "
        "the time in which the trainer learned, a loader was filling another slot.",
    )
    whole = min(h.began for h in handoffs), handoffs[-1].released
    Panel(sheet, "Slots", *whole, heights[0]).rows(slots)
    panel = Panel(sheet, "Processes", *whole, heights[1])
    panel.rows(processes)
    panel.deaths(deaths, list(processes))
    Panel(sheet, "Loss (mean of 8 batches)", *whole, heights[2]).curve(smoothed(handoffs), 1 / 3)
    panel = Panel(sheet, "Close-up, with batch numbers", *close, heights[3])
    panel.rows(both, labelled=True)
    panel.deaths(deaths, list(both))
    return sheet.image
