"""Config files: sources of values, their precedence, and warnings about unknown names."""

from __future__ import annotations

import configparser
import io
import logging
import os
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from torchx import config, schedulers
from torchx.config import Setting, SourcedCfg, resolve
from torchx.config import files as config_files
from torchx.config.ini import parse
from torchx.errors import ConfigError, TorchXError
from torchx.plugins import register
from torchx.specs import UnknownSchedulerException, runopts


@pytest.fixture(autouse=True)
def _fresh(monkeypatch, tmp_path):
    """An empty project folder, no earlier warnings, no profile."""
    project = tmp_path / "project"
    project.mkdir()
    monkeypatch.chdir(project)
    config._warned.clear()
    yield
    config.use_profile(None)


@pytest.fixture
def opts():
    found = runopts()
    found.add("queue", type_=str, help="queue to submit to", default="any")
    found.add("priority", type_=int, help="priority of the job", default=1)
    found.add("tags", type_=list[str], help="tags of the job")
    found.add("limits", type_=dict[str, str], help="limits of the job")
    found.add("verbose", type_=bool, help="say more", default=False)
    found.add("mail-type", type_=str, help="when to send mail")
    return found


def home(text):
    with open(os.path.expanduser("~/.torchxconfig"), "w") as file:
        file.write(text)


def project(text):
    with open(".torchxconfig", "w") as file:
        file.write(text)


def warnings_of(caplog):
    return [r.getMessage() for r in caplog.records if r.levelno >= logging.WARNING]


LAYERS = ("home", "project", "environment", "cfg")


@pytest.mark.parametrize(
    "given_layers", range(16), ids=lambda n: "+".join(layer for i, layer in enumerate(LAYERS) if n >> i & 1) or "none"
)
@pytest.mark.parametrize("who", ["code", "command-line"])
def test_the_last_layer_wins_and_says_so(monkeypatch, opts, given_layers, who):
    """default < home < project < environment < command line or code: value and source are those of the highest layer."""
    expected = Setting("any", "default")
    if given_layers & 1:
        home("# mine\n[sched]\nqueue = of-home\n")
        expected = Setting("of-home", "~/.torchxconfig:3")
    if given_layers & 2:
        project("[sched]\nqueue = of-project\n")
        expected = Setting("of-project", ".torchxconfig:2")
    if given_layers & 4:
        monkeypatch.setenv("TORCHX_SCHED_QUEUE", "of-environment")
        expected = Setting("of-environment", "$TORCHX_SCHED_QUEUE")
    cfg = None
    if given_layers & 8:
        cfg = {"queue": "of-cfg"} if who == "code" else SourcedCfg({"queue": "of-cfg"})
        expected = Setting("of-cfg", "code" if who == "code" else "-cfg")
    assert resolve("sched", opts, cfg)["queue"] == expected
    assert resolve("sched", opts, cfg)["priority"] == Setting(1, "default")


@pytest.mark.parametrize(
    ("key", "text", "expected"),
    [
        pytest.param("queue", "a b", "a b", id="str"),
        pytest.param("queue", '" a=b, c "', " a=b, c ", id="str-quoted"),
        pytest.param("queue", "50%", "50%", id="percent"),
        pytest.param("queue", "50%%(", "50%(", id="percent-doubled"),
        pytest.param("queue", "", "", id="str-empty"),
        pytest.param("queue", "a\n  b", "a\nb", id="str-of-two-lines"),
        pytest.param("priority", "7", 7, id="int"),
        pytest.param("verbose", "yes", True, id="bool"),
        pytest.param("tags", "a;b", ["a", "b"], id="list"),
        pytest.param("tags", "a,b", ["a", "b"], id="list-comma"),
        pytest.param("tags", "\n  a\n  b", ["a", "b"], id="list-of-lines"),
        pytest.param("limits", "K:v;L:w=x", {"K": "v", "L": "w=x"}, id="dict"),
        pytest.param("mail-type", "END", "END", id="dash-in-key"),
    ],
)
def test_values_have_the_type_of_their_option(opts, key, text, expected):
    """A text in a file is parsed like one on the command line."""
    project(f"[sched]\n{key} = {text}\n")
    assert resolve("sched", opts)[key].value == expected


def test_interpolation() -> None:
    """A value may contain values of other keys of its section and of `[DEFAULT]`, as in configparser."""
    project(
        "[DEFAULT]\nbase = /x\n[component:c]\na = %(base)s/%(b)s\nb = %(base)s:1\nc = 100%%\nd = %%(base)s %(c)s 5%\n"
        "[component:d]\nbase = /y\na = %(base)s\n"
    )
    found = config.get_configs("component", "c")
    assert found == {"base": "/x", "a": "/x//x:1", "b": "/x:1", "c": "100%", "d": "%(base)s 100% 5%"}
    assert config.get_configs("component", "d")["a"] == "/y"


@pytest.mark.parametrize(
    ("text", "words"),
    [("a = %(b)s", "is not a key"), ("a = %(b)s\nb = %(a)s", "refers to itself")],
    ids=["no key", "loop"],
)
def test_interpolation_that_leads_nowhere(text: str, words: str) -> None:
    """The error names the file, the line and the problem."""
    project(f"[component:c]\n{text}\n")
    with pytest.raises(ConfigError, match=rf"\.torchxconfig:[23]: `%\([ab]\)s` {words}") as e:
        config.get_configs("component", "c")
    assert "%%(" in e.value.hint


@pytest.mark.parametrize(("key", "text"), [("priority", "None"), ("priority", ""), ("tags", "None"), ("queue", "None")])
def test_none_means_the_default(opts, key, text):
    """`None`, and an empty value for an option that is not text, do not set the option."""
    project(f"[sched]\n{key} = {text}\n")
    assert resolve("sched", opts)[key].value == opts.get(key).default


@pytest.mark.parametrize("how", ["file", "environment"])
def test_a_value_of_the_wrong_type_says_where_it_is(monkeypatch, opts, how):
    """The error names file and line, or the variable, and the key and the value."""
    if how == "file":
        project("[sched]\n\npriority = high\n")
        where = ".torchxconfig:3"
    else:
        monkeypatch.setenv("TORCHX_SCHED_PRIORITY", "high")
        where = "$TORCHX_SCHED_PRIORITY"
    with pytest.raises(ConfigError) as e:
        resolve("sched", opts)
    assert e.value.message.startswith(f"{where}: `priority`")
    assert "`high`" in e.value.message


def test_a_variable_for_a_key_with_a_dash(monkeypatch, opts):
    """Dashes in names of schedulers and keys are underscores in the environment."""
    monkeypatch.setenv("TORCHX_MY_SCHED_MAIL_TYPE", "END")
    assert resolve("my-sched", opts)["mail-type"] == Setting("END", "$TORCHX_MY_SCHED_MAIL_TYPE")


# -- keys that mean nothing ------------------------------------------------------------------------


def test_an_unknown_key_in_a_file_is_warned_about_once(opts, caplog):
    """The warning has the file, the line and the nearest name; the key is ignored."""
    project("[sched]\npriority = 2\nqueu = gpu\n")
    for _ in range(3):
        found = resolve("sched", opts)
    assert "queu" not in found
    assert found["queue"].source == "default"
    assert warnings_of(caplog) == [".torchxconfig:3: scheduler `sched` has no run option `queu`, did you mean `queue`?"]


def test_an_unknown_key_on_the_command_line_is_an_error(opts):
    """The error names the key, and the hint the nearest name."""
    with pytest.raises(ConfigError, match="`queu`") as e:
        resolve("sched", opts, SourcedCfg({"queu": "gpu"}, source="--stdin"))
    assert e.value.message.startswith("--stdin: ")
    assert "`queue`" in e.value.hint


@pytest.mark.parametrize(("key", "who"), [("in", "`slurm` and `kubernetes` have it"), ("partition", "`slurm` has it")])
def test_an_option_that_other_schedulers_have(opts, key, who):
    """The hint names them."""
    with pytest.raises(ConfigError, match=f"no run option `{key}`") as e:
        resolve("sched", opts, SourcedCfg({key: "x"}, source="-cfg"))
    assert who in e.value.hint


@pytest.mark.parametrize(("scheduler", "key"), [("sched", "queu"), ("slurm", "colour")], ids=["typo", "of ours"])
def test_an_unknown_key_from_code_is_an_error(opts, scheduler, key):
    """As on the command line: the job would run without an intended option."""
    with pytest.raises(ConfigError, match=f"`{key}`") as e:
        resolve(scheduler, opts, {key: "gpu"})
    assert e.value.message.startswith("`cfg`: ")


def test_an_unknown_key_for_a_plugin_is_passed_on_with_a_warning(opts, caplog):
    """Its scheduler may read options that it does not declare."""
    assert resolve("sched", opts, {"colour": "red"})["colour"] == Setting("red", "code")
    assert "has no run option `colour`" in warnings_of(caplog)[0]


def test_a_scheduler_without_declared_options_takes_any(caplog):
    """Without declared options, no key is known to be wrong."""
    assert resolve("sched", runopts(), {"x": None}) == {"x": Setting(None, "code")}
    assert warnings_of(caplog) == []


@pytest.mark.parametrize(
    ("section", "meant"),
    [
        ("slrum", "slurm"),
        ("local_cdw", "local_cwd"),
        ("slrum@debug", "slurm"),
        ("named_resource", "named_resources"),
        ("clii", "cli"),
        ("cli:rnu", "cli:run"),
        ("torchx:trackers", "torchx:tracker"),
        ("traker:fsspec", "tracker:fsspec"),
        ("componnt:dist.ddp", "component:dist.ddp"),
        ("components:job.py:train", "component:job.py:train"),
        ("component:dist.dpp", "component:dist.ddp"),
    ],
)
def test_a_section_that_is_almost_one_that_means_something_is_warned_about(caplog, section, meant):
    """The warning has file, line and the nearest name, also for an empty section."""
    project(f"# a comment\n[slurm]\nqueue = gpu\n[{section}]\n")
    config.check_sections(["slurm", "local_cwd"])
    name = section.partition("@")[0]
    assert warnings_of(caplog) == [f".torchxconfig:4: unknown section `[{name}]`, did you mean `[{meant}]`?"]


@pytest.mark.parametrize(
    "section",
    [
        "slurm",
        "slurm@prod",
        "local_docker",
        "kubernetes_mcad",
        "my_own_tool",
        "tool:pytest",
        "component:dist.ddp",
        "component:dist.ddp@prod",
        "component:my_file.py:ddp",
        "component:mine.ddp",
        "cli:run",
        "tracker:fsspecs",
        "torchx:tracker",
        "named_resources",
    ],
)
def test_a_section_that_means_something_or_is_of_others_is_left_alone(caplog, section):
    """No warning about valid sections, or those of other programs."""
    project(f"[{section}]\nx = 1\n")
    config.check_sections(["slurm", "local_cwd"])
    assert warnings_of(caplog) == []


def test_a_component_section_of_a_plugin_is_left_alone(caplog):
    """Components below a plugin's module are known only after its import: no name is suggested."""
    register.component("utils2")(lambda: None)
    project("[component:utils2.echo]\nmsg = hi\n")
    try:
        config.check_sections(["slurm"])
    finally:
        register.forget("torchx.components", "utils2")
    assert warnings_of(caplog) == []


# -- profiles --------------------------------------------------------------------------------------


@pytest.mark.parametrize("chosen_by", ["option", "environment"])
def test_a_profile_lies_over_the_section(monkeypatch, opts, chosen_by):
    """`[sched@prod]` of any file overrides `[sched]`, whose other values are kept."""
    home("[sched@prod]\nqueue = prod\n")
    project("[sched]\nqueue = dev\npriority = 5\n[component:x@prod]\nimage = prod\n[component:x]\nimage = dev\nn = 1\n")
    assert resolve("sched", opts)["queue"].value == "dev"
    if chosen_by == "option":
        config.use_profile("prod")
    else:
        monkeypatch.setenv("TORCHX_PROFILE", "prod")
    found = resolve("sched", opts)
    assert found["queue"] == Setting("prod", "~/.torchxconfig:2")
    assert found["priority"] == Setting(5, ".torchxconfig:3")
    assert config.get_configs("component", "x") == {"image": "prod", "n": "1"}
    assert config.load_sections("component") == {"x": {"image": "prod", "n": "1"}}


def test_an_unknown_profile_is_an_error():
    """A profile without a section would silently have no effect: it is an error with the nearest name."""
    project("[slurm@prod]\nqueue = gpu\n")
    config.use_profile("prd")
    with pytest.raises(ConfigError, match="`prd`") as e:
        config.check_sections(["slurm"])
    assert "`prod`" in e.value.hint


# -- files -----------------------------------------------------------------------------------------


def test_the_project_file_goes_before_the_home_file():
    """`find_configs` lists the file with the highest precedence first, and none twice."""
    assert config.find_configs() == []
    home("")
    project("")
    here = os.path.join(os.getcwd(), ".torchxconfig")
    there = os.path.expanduser("~/.torchxconfig")
    assert config.find_configs() == [here, there]
    assert config.find_configs([os.getcwd(), "."]) == [here]
    assert config.find_configs([os.path.expanduser("~"), "/nowhere"]) == [there]


def test_torchxconfig_replaces_both_files(monkeypatch, opts, tmp_path):
    """`TORCHXCONFIG` names the only file; /dev/null disables config files."""
    home("[sched]\npriority = 1\nqueue = of-home\n")
    project("[sched]\nqueue = of-project\n")
    mine = tmp_path / "my.conf"
    mine.write_text("[sched]\nqueue = of-mine\n")
    monkeypatch.setenv("TORCHXCONFIG", str(mine))
    assert config.find_configs() == [str(mine)]
    found = resolve("sched", opts)
    assert found["queue"].value == "of-mine"
    assert found["priority"].source == "default"
    monkeypatch.setenv("TORCHXCONFIG", os.devnull)
    assert resolve("sched", opts)["queue"].source == "default"


@pytest.mark.parametrize("named", ["/nowhere/my.conf", "."], ids=["missing", "directory"])
def test_torchxconfig_must_name_a_file(monkeypatch, named):
    """A variable that does not name a file is an error."""
    monkeypatch.setenv("TORCHXCONFIG", named)
    with pytest.raises(ConfigError, match="names"):
        config.find_configs()


def test_a_changed_file_is_read_again(opts):
    """A long-running program sees changes."""
    project("[sched]\nqueue = one\n")
    assert resolve("sched", opts)["queue"].value == "one"
    project("[sched]\nqueue = another\n")
    assert resolve("sched", opts)["queue"].value == "another"


def test_default_config_dirs_may_be_replaced(monkeypatch, opts, tmp_path):
    """A program may set `DEFAULT_CONFIG_DIRS`, the folders to search."""
    assert list(config.DEFAULT_CONFIG_DIRS) == [os.getcwd(), os.path.expanduser("~")]
    (tmp_path / ".torchxconfig").write_text("[sched]\nqueue = mine\n")
    monkeypatch.setattr(config, "DEFAULT_CONFIG_DIRS", [str(tmp_path)])
    assert resolve("sched", opts)["queue"].value == "mine"


@pytest.mark.parametrize(
    ("text", "where"),
    [
        pytest.param("queue = gpu\n", ":1: `queue` appears before", id="no-section"),
        pytest.param("[sched]\nqueue\n", ":2: `queue` is not of the form `key = value`", id="no-value"),
        pytest.param("[sched]\n = gpu\n", ":2: `= gpu` has no key", id="no-key"),
        pytest.param("[sched]\na = 1\na = 2\n", ":3: `a` appears twice", id="key-twice"),
        pytest.param("[sched]\n[x]\n[sched]\n", ":3: section `[sched]` appears twice", id="section-twice"),
        pytest.param("\n\n[sched\nx = 1\n", ":3: `[sched` is not of the form `key = value`", id="open-bracket"),
    ],
)
def test_a_malformed_file_says_file_and_line(opts, text, where):
    """One line with the file, the line and the problem."""
    project(text)
    with pytest.raises(ConfigError) as e:
        resolve("sched", opts)
    assert e.value.message.startswith(f".torchxconfig{where}")
    assert e.value.hint


@pytest.mark.parametrize("content", [b"\xff\xfe[\x00", b"[sched]\nqueue = \xe9\n"], ids=["utf-16", "latin-1"])
def test_a_file_that_is_no_text(opts, content):
    """A file in another encoding is named."""
    with open(".torchxconfig", "wb") as file:
        file.write(content)
    with pytest.raises(ConfigError, match="is not UTF-8"):
        resolve("sched", opts)


def test_a_file_that_cannot_be_read(monkeypatch, opts):
    """A file without read permission is named, with the reason."""
    project("[sched]\nqueue = gpu\n")
    os.chmod(".torchxconfig", 0)
    if os.access(".torchxconfig", os.R_OK):  # root reads everything: let reading itself fail
        os.unlink(".torchxconfig")
        os.symlink("/proc/self/mem", ".torchxconfig")
    with pytest.raises(ConfigError, match="cannot be read"):
        resolve("sched", opts)


# -- the dialect -----------------------------------------------------------------------------------

_keys = st.text(alphabet="abcXYZ_-.", min_size=1, max_size=6)
_values = st.text(alphabet="abc =:;#[]%'\"$,{}", max_size=12).map(str.strip)
_lines = st.one_of(
    st.builds("{0} = {1}".format, _keys, _values),
    st.builds("{0}:{1}".format, _keys, _values),
    st.builds("    {0}".format, _values),
    st.builds("# {0}".format, _values),
    st.builds("; {0}".format, _values),
    st.builds("[{0}]".format, _keys),
    st.just(""),
    st.just("[DEFAULT]"),
)


@given(st.lists(_lines, max_size=12))
@settings(max_examples=400, deadline=None)
def test_files_mean_what_configparser_reads(lines):
    """Sections, keys and values equal those of configparser without interpolation; both reject the same files."""
    reference = configparser.RawConfigParser()
    reference.optionxform = str  # type: ignore[assignment,method-assign]
    text = "\n".join(["[first]", *lines])
    try:
        reference.read_string(text)
    except configparser.Error:
        with pytest.raises(ConfigError):
            parse(text.splitlines(keepends=True), "x")
        return
    ours = parse(text.splitlines(keepends=True), "x")
    assert {s: {k: e.text for k, e in entries.items()} for s, entries in ours.items()} == {
        s: dict(reference.items(s)) for s in reference.sections()
    }
    for entries in ours.values():
        for key, entry in entries.items():
            assert text.splitlines()[entry.line - 1].lstrip().startswith(key)


@given(st.text(max_size=80))
@settings(max_examples=200, deadline=None)
def test_any_text_is_read_or_refused(text):
    """For any text, the only error is a ConfigError that names the line."""
    try:
        parse(io.StringIO(text), "conf")
    except ConfigError as e:
        assert e.message.split(":")[1].isdigit()


# -- the public functions --------------------------------------------------------------------------


def test_apply_adds_only_what_is_missing():
    """Values in the cfg are kept; the file with the highest precedence adds the others."""
    home("[local_cwd]\nlog_dir = /of-home\nprepend_cwd = true\n")
    project("[local_cwd]\nlog_dir = /of-project\n")
    cfg: dict[str, Any] = {"auto_set_cuda_visible_devices": True}
    config.apply("local_cwd", cfg)
    assert cfg == {"auto_set_cuda_visible_devices": True, "log_dir": "/of-project", "prepend_cwd": True}
    cfg = {"log_dir": "mine"}
    config.apply("local_cwd", cfg, dirs=[os.path.expanduser("~")])
    assert cfg == {"log_dir": "mine", "prepend_cwd": True}


def test_load_reads_an_open_file():
    """`load` reads the scheduler's section of any text file, as the file itself would be, and keeps values that are set."""
    cfg: dict[str, Any] = {"prepend_cwd": False}
    text = "[local_cwd]\nlog_dir=/100%%/%(prepend_cwd)s\nprepend_cwd=true\n[slurm]\nx=1\n"
    config.load("local_cwd", io.StringIO(text), cfg)
    assert cfg == {"prepend_cwd": False, "log_dir": "/100%/true"}


def test_dump_writes_a_file_that_changes_nothing():
    """The file is read without a warning, and each option keeps its default."""
    text = io.StringIO()
    config.dump(text, ["local_cwd"])
    assert text.getvalue().startswith("[local_cwd]\n")
    project(text.getvalue())
    opts = config._run_opts("local_cwd")
    found = resolve("local_cwd", opts)
    assert {key: s.value for key, s in found.items()} == {key: opt.default for key, opt in opts}
    with pytest.raises(UnknownSchedulerException):
        config.dump(text, ["no_such_scheduler"])


@pytest.mark.parametrize("error", [RuntimeError("no QUEUE_HOME"), ImportError("No module named 'queue_api'")])
def test_dump_without_a_scheduler_that_cannot_be_made(monkeypatch, caplog, error):
    """It is left out with a warning, whatever its plugin raises; if it was named, that is an error."""

    def broken(session_name: str, **_: object) -> Any:
        raise error

    real = schedulers.get_scheduler_factories()
    monkeypatch.setattr(schedulers, "get_scheduler_factories", lambda: {"broken": broken, **real})
    text = io.StringIO()
    config.dump(text)
    assert "[local_cwd]" in text.getvalue() and "broken" not in text.getvalue()
    assert "scheduler `broken` cannot be" in caplog.text and str(error) in caplog.text
    with pytest.raises(TorchXError, match="scheduler `broken` cannot be"):
        config.dump(text, ["broken"])


def test_dump_marks_what_is_required(monkeypatch):
    """A required option has a placeholder, which counts as missing."""
    opts = runopts()
    opts.add("queue", type_=str, help="queue to submit to\nin two lines", required=True)
    opts.add("limits", type_=dict[str, str], help="limits", default={"a": "b,c"})
    monkeypatch.setattr(config, "_run_opts", lambda scheduler: opts)
    text = io.StringIO()
    config.dump(text, ["mine"], required_only=True)
    assert text.getvalue() == "[mine]\n# queue to submit to\n# in two lines\nqueue = #FIXME:(str)\n\n"
    text = io.StringIO()
    config.dump(text, ["mine"])
    project(text.getvalue())
    with pytest.raises(ConfigError, match="queue"):
        resolve("mine", opts)
    assert resolve("mine", opts, {"queue": "gpu"})["limits"].value == {"a": "b,c"}


def test_sections_with_a_prefix():
    """`get_config`, `get_configs` and `load_sections` read `[prefix:name]` as text."""
    project("[cli:run]\ncomponent = dist.ddp\n[component:dist.ddp]\nj = 2x2\n[component:a.b:c]\nmemMB = 1\n")
    assert config.get_config("cli", "run", "component") == "dist.ddp"
    assert config.get_config("cli", "run", "nothing") is None
    assert config.get_config("cli", "nothing", "nothing") is None
    assert config.get_configs("component", "dist.ddp") == {"j": "2x2"}
    assert config.load_sections("component") == {"dist.ddp": {"j": "2x2"}, "a.b:c": {"memMB": "1"}}
    assert config.load_sections("component", dirs=["/nowhere"]) == {}


def test_reading_no_config_imports_no_parser(monkeypatch):
    """Without a config file, resolving options reads no file and imports no parser."""
    import subprocess
    import sys

    code = (
        "import sys; from torchx import config; from torchx.specs import runopts;"
        " config.resolve('x', runopts()); slow = {'configparser', 'logging', 'json', 'sqlite3'} & set(sys.modules);"
        " sys.exit(str(slow) if slow else 0)"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_files_are_cached_by_what_they_are(opts):
    """An unchanged file is not parsed again."""
    project("[sched]\nqueue = gpu\n")
    first, again = (config_files.load_files().section("sched")["queue"] for _ in range(2))
    assert first is again


@pytest.mark.parametrize("kind", ["fifo", "zero", "large"])
def test_only_regular_files_of_a_sensible_size_are_read(
    kind: str, tmp_path: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A FIFO would block, and a device has no end: they are rejected before they are opened."""
    path = tmp_path / ".torchxconfig"
    if kind == "fifo":
        os.mkfifo(path)
    elif kind == "zero":
        path.symlink_to("/dev/zero")
    else:
        path.write_bytes(b"#" * ((1 << 20) + 1))
    with pytest.raises(ConfigError, match="larger than 1 MiB" if kind == "large" else "not a regular file"):
        config_files.load_files([str(tmp_path)])
    monkeypatch.setenv("TORCHXCONFIG", "/dev/null")
    assert not config_files.load_files()


@pytest.mark.parametrize("name", ["scheduler", "defaults", "component", "torchx"])
def test_a_section_that_nothing_reads_is_warned_about(opts, caplog, name):
    """It says where the values belong, once, as soon as the file is read."""
    project(f"[{name}]\ncpu = 4\n")
    for _ in range(2):
        config.load_files()
    assert [w for w in warnings_of(caplog) if "has no effect" in w and f"[{name}]" in w and "belong in" in w]
    assert len(warnings_of(caplog)) == 1
