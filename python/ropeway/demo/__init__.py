"""The main job on real photos: loader processes fill slots, a trainer learns from them in place."""


class DemoError(Exception):
    """Says in one sentence why the demo can't go on, to the person who started it."""
