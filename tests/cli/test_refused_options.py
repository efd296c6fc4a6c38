"""Numbers, names and words that no command can work with are refused before anything is done."""

from __future__ import annotations

import argparse
from dataclasses import replace

import pytest
from support.state.snapshots import orders

from muster.cli.drain import _refuse_unknown
from muster.cli.main import main
from muster.cli.options import MS_MAX
from muster.errors import NotFound
from muster.kafka.command_options import PREFIX_CHARS_MAX, add_prefixes, prefixes_of
from muster.kafka.partition_counts import MEMBERS_A_PARTITION, PARTITIONS_MAX
from muster.kafka.topic_creation import REPLICATION_MAX
from muster.protocol.ids import MemberId
from muster.protocol.records import MemberEntry
from muster.protocol.topics import DEFAULT_PREFIX, TopicKind
from muster.whatif import planned

NOWHERE = ("--bootstrap-server", "127.0.0.1:1")
DRAIN = ("drain", "--group", "g", "--member", "W1", *NOWHERE)
WORKER = ("worker", "--group", "g", *NOWHERE)
ADOPT = ("adopt", "--group", "g", *NOWHERE)
DRY_RUN = ("topics", "create", "--dry-run")
Output = pytest.CaptureFixture[str]


def said_by(words: tuple[str, ...], capsys: Output) -> str:
    """What a command with wrong usage says on standard error."""
    try:
        code: object = main(words)
    except SystemExit as end:  # of the parser
        code = end.code
    printed = capsys.readouterr()
    assert (code, printed.out) == (2, "")
    (line,) = printed.err.splitlines()
    return line


@pytest.mark.parametrize(
    ("words", "option"),
    [
        (DRAIN, "--timeout-ms"),
        ((*WORKER, "--exec", "true"), "--stop-timeout-ms"),
        (ADOPT, "--session-timeout-ms"),
        (ADOPT, "--answer-timeout-ms"),
        (("keys", "rotate", "none.json"), "--spread-ms"),
    ],
)
def test_spans_have_bounds(words: tuple[str, ...], option: str, capsys: Output) -> None:
    """A span is not negative, and not longer than clocks can wait."""
    assert f"{option} -1: expected " in said_by((*words, option, "-1"), capsys)
    long = str(MS_MAX + 1)
    most = f"{option} {long}: expected at most {MS_MAX} (24 days)"
    assert most in said_by((*words, option, long), capsys)


@pytest.mark.parametrize(
    ("option", "most"),
    [
        ("--partitions", PARTITIONS_MAX),
        ("--members", PARTITIONS_MAX * MEMBERS_A_PARTITION),
        ("--replication-factor", REPLICATION_MAX),
    ],
)
def test_topics_have_bounds(option: str, most: int, capsys: Output) -> None:
    """Numbers that the client does not accept are refused, also without asking Kafka."""
    assert main([*DRY_RUN, option, str(most)]) == 0
    capsys.readouterr()
    wanted = f"argument {option}: {most + 1}: expected at most {most};"
    assert wanted in said_by((*DRY_RUN, option, str(most + 1)), capsys)


@pytest.mark.parametrize("prefix", ["", "a b", "ü", "a/b", "x" * (PREFIX_CHARS_MAX + 1)])
@pytest.mark.parametrize("words", [DRY_RUN, (*WORKER, "--exec", "true"), ("clock", *NOWHERE)])
def test_a_topic_prefix_is_the_beginning_of_a_name(
    words: tuple[str, ...], prefix: str, capsys: Output
) -> None:
    """A prefix that no topic can have, or an empty variable of a script, is refused."""
    line = said_by((*words, "--topic-prefix", prefix), capsys)
    assert "argument --topic-prefix: " in line
    assert f"expected 1 to {PREFIX_CHARS_MAX} characters: letters, digits, . _ -" in line


def test_a_topic_prefix_given_twice() -> None:
    """It counts once, because Kafka refuses a question that names a topic twice."""
    parser = argparse.ArgumentParser()
    add_prefixes(parser)
    words = ["--topic-prefix", "b", "--topic-prefix", "a", "--topic-prefix", "b"]
    assert prefixes_of(parser.parse_args(words)) == ["b", "a"]
    assert prefixes_of(parser.parse_args([])) == [DEFAULT_PREFIX]


def test_the_longest_topic_prefix(capsys: Output) -> None:
    """With the longest prefix, the longest topic has a name of 249 characters."""
    prefix = "x" * PREFIX_CHARS_MAX
    assert max(len(f"{prefix}.{kind}") for kind in TopicKind) == 249
    assert main([*DRY_RUN, "--topic-prefix", prefix]) == 0
    assert f"{prefix}.{TopicKind.ASSIGNMENTS}" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("words", "wanted"),
    [
        ((*WORKER, "--exec", "x", "--leave-for-good"), "it is for a worker with --instance-id"),
        ((*WORKER, "--exec", " "), "--exec: expected a shell command; {task} in it is"),
        (
            ("run", *NOWHERE, "--checkpoint", "none", "--console", "65536"),
            "--console 65536: expected a port, 0 to 65535",
        ),
        (("simulate", "--lives=9", "--seed", "x"), "argument --seed: 'x': expected a whole number"),
        (("simulate", "life.json", "--changes"), "give --seed N or --lives N too"),
        (("simulate", "--seed", "1", "--processes", "2"), "--lives N: give it too"),
        (("groups", "list", "--members", *NOWHERE), "--members is only for groups describe"),
        (("groups", "release", "--verbose", *NOWHERE), "--verbose is only for groups describe"),
        (("run", "--checkpoint", __file__, *NOWHERE), "expected a folder (or URL), not a file"),
        (("run", "--checkpoint", f"file://{__file__}", *NOWHERE), "(or URL), not a file"),
        (("broker", "--data-dir", __file__), "expected a folder, not a file"),
        ((*ADOPT, "--fresh", "x"), "invalid choice: 'x' (choose from 'consumer', 'connect')"),
        ((*ADOPT, "--pin", "sink"), "--pin 'sink': expected JOB=WORKER"),
        (("config", "describe", "--group", "g"), "muster config show --group g"),
    ],
)
def test_words_that_mean_nothing(words: tuple[str, ...], wanted: str, capsys: Output) -> None:
    """A blank command, options without their other one, a port or a number that there is not."""
    assert wanted in said_by(words, capsys)


@pytest.mark.parametrize(
    ("words", "option"),
    [
        (("groups", "list", *NOWHERE), "--group"),
        (("explain", "--group", "g", *NOWHERE), "--task"),
        ((*WORKER, "--exec", "x"), "--rack"),
        ((*WORKER, "--exec", "x"), "--member-id"),
        ((*WORKER, "--exec", "x"), "--tag"),
        (("worker", "--exec", "x", *NOWHERE), "--group"),
        (("config", "set", "--group", "g", *NOWHERE), "--assignor"),
        (("groups", "list"), "--bootstrap-server"),
        (("groups", "list", *NOWHERE), "--command-config"),
        (("console", *NOWHERE), "--host"),
        (("console", *NOWHERE), "--allow"),
        (("run", *NOWHERE, "--checkpoint", "none"), "--conf"),
        (("broker",), "--data-dir"),
        (("simulate",), ""),
    ],
)
def test_empty_values(words: tuple[str, ...], option: str, capsys: Output) -> None:
    """A variable that a script has not set is no option that was not given."""
    empty = [[option, ""], [f"{option}="]] if option else [[""]]
    for last in empty:
        line = said_by((*words, *last), capsys)
        assert f"{option}: " in line
        assert "expected a value, not an empty text" in line or "of 0 characters" in line


@pytest.mark.parametrize(
    ("words", "wanted"),
    [
        (("assign", "--formt", "table", "p.json"), "no option '--formt': did you mean --format?;"),
        (("explain", "--gruop", "orders"), "no option '--gruop': did you mean --group?;"),
        (("explain", "--gruop=orders"), "no option '--gruop': did you mean --group?;"),
        (("explain", "--group", "g", "--zzz"), "no option '--zzz'; see muster explain --help"),
        (("explain", "g"), "the following arguments are required: --group;"),
        (("explain", "--group", "g", "--", "--x"), "unrecognized arguments: "),
    ],
)
def test_a_misspelt_option(words: tuple[str, ...], wanted: str, capsys: Output) -> None:
    """The message names the word, and the option that the command has instead."""
    assert wanted in said_by(words, capsys)


@pytest.mark.parametrize("command", ["keys", "groups", "config"])
def test_help_explains_every_action(command: str, capsys: Output) -> None:
    """The help says what each action of a command does."""
    with pytest.raises(SystemExit):
        main([command, "--help"])
    text = " ".join(capsys.readouterr().out.split())
    actions = text.partition("usage: ")[2].partition("positional arguments:")[2].split()[0]
    assert [a for a in actions.split("|") if f"{a}: " not in text.partition(actions)[2]] == []


def test_an_unknown_member_of_a_wide_group() -> None:
    """Of thousands of members the message of `drain` and `plan` names the similar ones first."""
    wide = replace(
        orders(),
        members=tuple(
            MemberEntry(id=MemberId(f"w-{n:04}"), slot=n, incarnation=n) for n in range(3_000)
        ),
    )
    args = argparse.Namespace(member="w-1234x", group="orders", cancel=False)
    with pytest.raises(NotFound, match=r"there are: w-1234, .* and 2995 more$"):
        _refuse_unknown(args, wide)
    with pytest.raises(NotFound, match=r"there are: w-1234, .* and 2995 more$"):
        planned(wide, remove=["w-1234x"])
