"""What may be compared, and in which regime."""

import pytest

from fairmargin.suite.entries import parse_entries, parse_entry
from fairmargin.suite.plan import cells_of, config_of, place
from fairmargin.suite.tasks import GROUPS, TASKS, parse_tasks


@pytest.mark.parametrize(
    ("text", "regime", "bias"),
    [
        ("ce", "unknown", "none"),
        ("lff", "unknown", "none"),
        ("jtt@knows=validation", "validation", "labels"),
        ("group-dro", "known", "labels"),
        ("group-dro@bias=auto", "unknown", "auto"),
        ("eps-supinfonce+fairkl", "known", "labels"),
        ("dfr", "validation", "labels"),
        ("dfr@method.source=train", "known", "labels"),
        ("dfr@method.source=valid", "validation", "labels"),
    ],
)
def test_a_method_gets_the_least_that_it_needs(text, regime, bias):
    entry = parse_entry(text)
    assert (entry.regime, entry.bias, entry.label) == (regime, bias, text)


def test_a_title_is_what_tables_say_and_leaves_the_folder_as_it_is():
    plain, titled = (parse_entry(f"{title}lff@train.epochs=3") for title in ("", "Long one: "))
    assert titled.label == "Long one"
    assert (titled.folder, titled.changes) == (plain.folder, plain.changes)
    assert parse_entry("x:group-dro@bias=audit:hue").bias == "audit:hue"
    with pytest.raises(ValueError, match='two entries with the title "a"'):
        parse_entries("a:ce,a:lff")


def test_settings_of_an_entry_reach_the_run():
    entry = parse_entry("lff@train.epochs=3@optimizer.lr=0.5")
    config = config_of(TASKS["colors"], entry, 7, ["train.epochs=9", "train.batch_size=32"])
    assert (config.train.epochs, config.optimizer.lr, config.train.batch_size) == (3, 0.5, 32)
    assert (config.seed, config.method.name, config.data.name) == (7, "lff", "suite-colors")


def test_validation_chooses_by_what_may_be_known():
    def chosen(text):
        config = config_of(TASKS["colors"], parse_entry(text), 0)
        return config.data.options["regime"], config.evaluate.select, config.data.bias

    assert chosen("group-dro") == ("known", "cell-mean", "labels")
    assert chosen("dfr") == ("validation", "cell-mean", "labels")
    assert chosen("lff") == ("unknown", "plain", "none")
    assert chosen("group-dro@bias=auto") == ("unknown", "plain", "auto")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("group-drow", "unknown method 'group-drow': did you mean 'group-dro'"),
        ("ce@bias", "after @ comes KEY=VALUE"),
        ("group-dro@knows=unknown", "needs bias labels, which is not there with knows=unknown"),
        ("dfr@knows=unknown", "needs validation bias labels"),
        ("group-dro@bias=auto@knows=known", "belongs to the regime unknown"),
        ("ce@knows=everything", "unknown regime 'everything'"),
        ("ce@data.regime=known", "data.regime is decided by the suite"),
        ("", "--methods is empty"),
    ],
)
def test_wrong_entries_are_refused(text, message):
    with pytest.raises(ValueError, match=message):
        parse_entries(text)


def test_tasks_by_name_and_group():
    assert [task.name for task in parse_tasks("corners,colors,colors")] == ["colors", "corners"]
    assert len(parse_tasks("core")) == 10
    assert {task.name for task in parse_tasks("core")} - set(GROUPS["images"]) == {"embeddings"}
    with pytest.raises(ValueError, match="unknown task 'corner': did you mean 'corners'"):
        parse_tasks("corner")
    with pytest.raises(ValueError, match="held-out tasks are not ranked together"):
        parse_tasks("core,held-out")


def test_every_run_has_a_folder_of_its_own():
    entries = parse_entries("group-dro,group-dro@bias=auto,group-dro@bias=audit:border layout")
    cells = cells_of(parse_tasks("colors,corners"), entries, [0, 1])
    assert len({cell.folder for cell in cells}) == len(cells) == 12
    task, entry = TASKS["colors"], entries[0]
    assert place("runs", 0, task, entry) != place("runs", 4, task, entry)
    assert all(" " not in str(cell.folder) and ":" not in str(cell.folder) for cell in cells)
