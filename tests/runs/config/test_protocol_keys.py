"""The keys `protocol` and `protocols` over a config that has the other one."""

import pytest

from fedloom.runs.config.run_config import load, parse

LIST = "evaluation.protocols=[global/local, personal/local]"


@pytest.mark.parametrize(
    ("text", "word", "main", "tested"),
    [
        ("{protocol: personal/global}", LIST, "global/local", ("global/local", "personal/local")),
        ("{protocol: global/local}", LIST, "global/local", ("global/local", "personal/local")),
        ("{}", LIST, "global/local", ("global/local", "personal/local")),
        ("{protocols: [global/global, global/local]}", LIST, "global/local", ("global/local", "personal/local")),
        (
            "{protocols: [global/global, global/local]}",
            "evaluation.protocol=personal/local",
            "personal/local",
            ("personal/local",),
        ),
        ("{protocols: [global/global, global/local]}", "rounds=3", "global/global", ("global/global", "global/local")),
        ("{protocol: global/local}", "evaluation.protocols=[personal/local]", "personal/local", ("personal/local",)),
    ],
)
def test_what_is_typed_replaces_the_other_key(text, word, main, tested, tmp_path):
    path = tmp_path / "config.yaml"
    path.write_text(f"scenario: {{source: digits, partition: iid}}\nevaluation: {text}\n")
    evaluation = parse(load(path, [word])).evaluation
    assert (evaluation.protocol, evaluation.tested_protocols) == (main, tested)


def test_a_resolved_config_is_itself_again():
    config = parse(
        {
            "scenario": {"source": "digits", "partition": "iid"},
            "evaluation": {"protocols": ["global/local", "personal/local"]},
        }
    )
    again = parse(config.resolved())
    assert again.fingerprint() == config.fingerprint()
