"""What the demo tells of a run: summary, live line, timeline."""

import re
import signal
from io import StringIO
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

import ropeway as rw
from ropeway.demo import live, spans, summary, timeline
from ropeway.demo.handoff import NOTE, Fill, HandOff, fills_of
from ropeway.demo.place import Place

SECOND = 1_000_000_000


def handoff(batch, *, filled, trained, slot=0, loader=0, in_place=32, loss=0.3):
    return HandOff(
        batch,
        (Fill(loader, 100 + loader, 32, *filled, 9),),
        slot=slot,
        images=32,
        nbytes=1000,
        asked=trained[0],
        taken=trained[0],
        released=trained[1],
        faults=3,
        place=Place(1, 7, 4096),
        in_place=in_place,
        unreadable=frozenset(),
        loss=loss,
        error=10.0,
    )


def run_of(count, loaders=2):
    """Hand-offs as a run of `count` batches might give them, 0.1 s each."""
    tenth = SECOND // 10
    return [
        handoff(
            n,
            filled=((n - 1) * tenth, n * tenth + tenth // 2),
            trained=((n + 1) * tenth, (n + 2) * tenth - 1),
            slot=n % 4,
            loader=n % loaders,
            loss=0.33 - n / 200,
        )
        for n in range(count)
    ]


def stats_of(waited, share, endings=()):
    """What a loader says whose consumer has waited for so long of 10 s."""
    worker = rw.WorkerStats(0, 100, 10 * share, share, 5, 160, 0, 0)
    return rw.LoaderStats(10.0, 5, 160, 5000, waited, 10 * (1 - share), 0, (worker,), endings)


def test_a_batch_made_by_several_tells_who_had_a_part_in_it():
    notes = np.zeros(6, NOTE)
    notes["pid"] = [7, 7, 9, 9, 9, 7]
    notes["loader"] = [0, 0, 1, 1, 1, 0]
    notes["began"] = [10, 20, 11, 15, 19, 30]
    notes["ended"] = [20, 30, 15, 19, 25, 45]
    notes["faults"] = [5, 0, 1, 1, 1, 3]
    assert fills_of(notes) == (Fill(0, 7, 3, 10, 45, 8), Fill(1, 9, 3, 11, 25, 3))


def test_overlap_is_the_share_of_training_during_which_a_loader_fills():
    taking_turns = [
        handoff(n, filled=(2 * n, 2 * n + 1), trained=(2 * n + 1, 2 * n + 2)) for n in range(3)
    ]
    assert spans.overlap(taking_turns) == 0
    half = [
        handoff(0, filled=(0, 10), trained=(10, 20)),
        handoff(1, filled=(5, 15), trained=(20, 30)),
    ]
    assert spans.overlap(half) == pytest.approx(0.25)
    assert spans.overlap([handoff(0, filled=(0, 9), trained=(2, 5))]) == 1


def test_a_slots_row_has_no_gap():
    for row in spans.slot_rows(run_of(20)).values():
        assert all(before.end == after.start for before, after in pairwise(row))


def test_the_verdict_names_the_side_that_holds_the_other_up():
    def said(stats):
        return "\n".join(summary.summary(run_of(5), stats, [], 0, Path("x.png")))

    slow_loader = said(stats_of(6.0, 0.98))
    assert "waiting      trainer 60% of its time, loaders 2% of theirs" in slow_loader
    assert "verdict      loader-bound" in slow_loader
    slow_trainer = said(stats_of(0.1, 0.5))
    assert "waiting      trainer 1% of its time, loaders 50% of theirs" in slow_trainer
    assert "verdict      consumer-bound" in slow_trainer


def test_bytes_are_said_to_be_uncopied_only_if_every_image_shows_it():
    run = run_of(3)
    assert summary.copied_line(run).startswith("0 bytes")
    run[1] = run[1]._replace(in_place=31)
    assert summary.copied_line(run).startswith("unknown: only 95 of 96 images")


def test_page_faults_in_new_slots_are_told_apart():
    run = [h._replace(faults=500 if n < 4 else 2) for n, h in enumerate(run_of(12))]
    line = summary.faults_line(run)
    assert "writing 9 (9 in a slot met first), trainer 2 (500 in a slot met first)" in line


def test_the_summary_names_who_was_killed_and_who_took_over():
    ending = rw.WorkerEnding(1, 101, -signal.SIGSEGV, 1.55)
    run = run_of(30)
    for n in range(17, 30, 2):
        fill = run[n].fills[0]._replace(pid=4712)
        run[n] = run[n]._replace(fills=(fill,))
    death = summary.death(ending, run)
    told = "replaced     at 1.6 s loader 1 (pid 101) was killed by SIGSEGV; "
    lines = summary.summary(run, stats_of(1.0, 0.5), [death], 0, Path("x.png"))
    assert told + "pid 4712 took over with batch 17" in lines
    unneeded = summary.death(ending, run[:16])
    lines = summary.summary(run, stats_of(1.0, 0.5), [unneeded], 0, Path("x.png"))
    assert told + "the one in its place had nothing to do any more" in lines
    assert summary.summary([], None, [], 0, Path("x.png")) == [
        "images       none: no batch was handed over"
    ]


def test_the_line_counts_slots_by_place_and_says_who_waits():
    run = [
        handoff(0, filled=(0, 10), trained=(50, 60)),
        handoff(1, filled=(10, 40), trained=(60, 70)),
        handoff(2, filled=(40, 55), trained=(70, 80)),
        handoff(3, filled=(55, 70), trained=(80, 90)),
    ]
    assert "1 free 1 fill 1 ready 1 train" in live.line(run, 4, 2, 0.5)
    assert live.line(run[:3], 4, 2, 0.5) == "0s starting"
    busy = [
        handoff(n, filled=(10 * n, 10 * n + 10), trained=(10 * n, 10 * n + 10)) for n in range(9)
    ]
    assert "nobody waits" in live.line(busy, 4, 1, 99.0)
    assert "loaders wait 50%" in live.line(busy, 4, 2, 99.0)
    hungry = [h._replace(taken=h.taken + 8) for h in busy]
    assert "trainer waits 78%" in live.line(hungry, 4, 1, 99.0)
    assert re.search(r"\d+ images/s .* GB/s, .* loss 0\.258", live.line(run_of(30), 4, 2, 3.0))


def test_the_line_stays_in_place_on_a_terminal_only():
    out = StringIO()
    plain = live.LiveLine(out)
    assert not plain.due()
    plain.show("one")
    plain.clear()
    assert out.getvalue() == "one\n"
    out = StringIO()
    out.isatty = lambda: True
    terminal = live.LiveLine(out)
    assert terminal.due()
    terminal.show("x" * 1000)
    terminal.clear()
    assert "\n" not in out.getvalue()
    assert out.getvalue().count("\r") == 2


def test_the_timeline_is_a_png_with_all_stages_in_it(tmp_path):
    run = run_of(40)
    death = summary.Death(2 * SECOND, 1, 4711, "was killed by SIGKILL", 4712, 33)
    timeline.draw(run, [death], 0).save(tmp_path / "timeline.png")
    with Image.open(tmp_path / "timeline.png") as picture:
        assert picture.format == "PNG"
        assert picture.width == timeline.WIDTH
        rows = 4 + 3  # slots and processes
        assert picture.height > 2 * rows * timeline.ROW
        colours = {colour for _, colour in picture.convert("RGB").getcolors(1 << 24)}
    drawn = [*timeline.COLOURS.values(), timeline.DEAD]
    assert all(tuple(bytes.fromhex(colour[1:])) in colours for colour in drawn)


def test_a_timeline_of_one_hand_off_is_drawn():
    assert timeline.draw(run_of(1), [], 0).width == timeline.WIDTH
