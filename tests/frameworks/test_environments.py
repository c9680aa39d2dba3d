"""A framework that isn't checked is named, and only what its owner must give is no failure."""

import sys

import environments
import pytest
from environments import Environment, Failed, Unavailable


@pytest.fixture
def run(monkeypatch, capsys):
    """Runs the command with some environments, whose set-up and checks are given; what it says."""

    def run(*arguments, set_up=lambda *_: sys.executable, check=lambda *_: "3 passed", **some):
        monkeypatch.setattr(environments, "ALL", {n: Environment(**e) for n, e in some.items()})
        monkeypatch.setattr(environments, "build_wheel", lambda: None)
        monkeypatch.setattr(environments, "set_up", set_up)
        monkeypatch.setattr(environments, "check", check)
        monkeypatch.setattr(sys, "argv", ["environments", *arguments])
        status = environments.main()
        return status, capsys.readouterr().out.splitlines()

    return run


def raising(error):
    def work(name, *_):
        if name == "b":
            raise error
        return sys.executable

    return work


def test_all_are_named_with_what_came_of_them(run):
    status, lines = run(a={}, b={})
    assert status == 0
    assert [line.split()[:3] for line in lines] == [["a:", "3", "passed;"], ["b:", "3", "passed;"]]


@pytest.mark.parametrize(
    "error", [Failed("no such package"), OSError("disk full"), ValueError("x")]
)
def test_what_cannot_be_set_up_fails_by_name_and_the_rest_is_checked(run, error):
    status, lines = run(a={}, b={}, c={}, set_up=raising(error))
    assert status == 1
    assert len(lines) == 3
    assert lines[1].split(maxsplit=4)[:4] == ["b:", "NOT", "SET", "UP:"]
    assert str(error) in lines[1]


def test_what_only_the_owner_of_the_machine_can_give_is_said_and_no_failure(run):
    status, lines = run(a={}, b={}, set_up=raising(Unavailable("needs root")))
    assert status == 0
    assert lines[1].split() == ["b:", "unavailable:", "needs", "root"]


def test_failed_checks_fail_by_name(run):
    status, lines = run(a={}, b={}, c={}, check=raising(Failed("2 failed")))
    assert status == 1
    assert "FAILED" in lines[1]
    assert "2 failed" in lines
    assert lines[-1].startswith("c:")


def test_some_can_be_chosen(run):
    some = {"a": {"light": True}, "b": {}, "c": {}}
    for arguments, names in [
        ([], "abc"),
        (["--light"], "a"),
        (["--rest"], "bc"),
        (["c", "a"], "ca"),
    ]:
        _, lines = run(*arguments, **some)
        assert "".join(line[0] for line in lines) == names
    with pytest.raises(SystemExit):
        run("d", **some)


def test_a_command_that_fails_says_how():
    with pytest.raises(Failed, match=r"ended with 3:\nwhy"):
        environments.run([sys.executable, "-c", "import sys; print('why'); sys.exit(3)"])
