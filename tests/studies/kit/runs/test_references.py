import json
import os
import pickle
from dataclasses import replace

import pytest

from studies.kit.records import append_fresh
from studies.kit.records import record as keep_record
from studies.kit.runs.listing import scan
from studies.kit.runs.references import collect
from studies.kit.seeds import FRESH_FROM
from studies.kit.words import CommandError
from tests.studies.kit.runs.stores import OTHER, damage, record, renew, rollouts, stored

OLD = "fedcba9876543210" * 4


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """A working directory with a folder of studies that holds one, fold."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "studies").mkdir()
    (tmp_path / "studies" / "study_fold.py").write_text("")
    return tmp_path / "studies"


def kinds(folder, store, others=(), asked=()):
    """The kinds of reasons of every row, by seed (by kind of row where it is no run)."""
    references = collect([folder], store, others, asked)
    return {
        row.manifest.get("seed", row.kind): [reason.kind for reason in references.reasons(row)] for row in scan(store)
    }


def test_this_codes_runs_of_a_study_in_the_folder_are_current_unless_their_seeds_are_fresh(folder, tmp_path):
    runs = [record(seed=0), record(seed=FRESH_FROM - 1), record(seed=FRESH_FROM), record(seed=3, code=OTHER)]
    stored(tmp_path / "store", *runs)
    assert kinds(folder, tmp_path / "store") == {0: ["current"], FRESH_FROM - 1: ["current"], FRESH_FROM: [], 3: []}


def test_a_study_that_is_in_no_folder_is_not_known_unless_it_was_asked_for(folder, tmp_path):
    stored(tmp_path / "store", record("gone", 1), record("gone", 2, code=OTHER))
    assert kinds(folder, tmp_path / "store") == {1: ["unknown study"], 2: ["unknown study"]}
    assert kinds(folder, tmp_path / "store", asked=["gone"]) == {1: [], 2: []}


def test_what_cannot_be_read_or_told_stays(folder, tmp_path):
    store = tmp_path / "store"
    spoiled, new, bare, _ = stored(
        store, *(record(seed=s, code=OTHER) for s in range(3)), record(seed=3, rung="nowhere")
    )
    damage(store, spoiled)
    renew(store, new)
    (store / bare / "manifest.json").unlink()
    assert kinds(folder, store) == {"damaged": ["damaged"], "newer": ["newer"], "incomplete": [], 3: ["unknown code"]}


def test_a_record_keeps_the_runs_of_its_study_and_code(folder, tmp_path, finding):
    made = finding(study="fold", claim="never-flips", fingerprint=OTHER)
    keep_record(folder / "records", made, "abc")
    append_fresh(folder / "records", replace(made, base=FRESH_FROM, fingerprint=OLD))
    runs = [record(seed=0, code=OTHER), record(seed=FRESH_FROM, code=OLD), record(seed=2, code="0" * 64)]
    stored(tmp_path / "store", *runs, record("dwell", 3, code=OTHER))
    found = kinds(folder, tmp_path / "store", asked=["dwell"])
    assert found == {0: ["record"], FRESH_FROM: ["record"], 2: [], 3: []}


def test_fresh_seeds_alone_do_not_name_the_study_and_keep_all_of_their_code(folder, tmp_path, finding):
    made = finding(study="fold", claim="never-flips", fingerprint=OLD, base=FRESH_FROM)
    append_fresh(folder / "records", made)
    stored(tmp_path / "store", record("fold", 1, code=OLD), record("dwell", 2, code=OLD), record("fold", 3, code=OTHER))
    assert kinds(folder, tmp_path / "store", asked=["dwell"]) == {1: ["record"], 2: ["record"], 3: []}


def test_a_record_that_cannot_be_read_stops_everything(folder, tmp_path):
    (folder / "records").mkdir()
    (folder / "records" / "claim.json").write_text("{")
    with pytest.raises(CommandError, match=r"claim.json is not a record .*nobody can say which runs it refers to"):
        collect([folder], tmp_path / "store")


@pytest.mark.parametrize(
    "place", ["escalations", "studies/escalations", "runs/sweeps/fold-1", "sweeps/x/points", "notes"]
)
@pytest.mark.parametrize("how", ["key", "short", "fingerprint", "seeds", "pickle", "binary"])
def test_a_file_that_names_a_run_keeps_it(folder, tmp_path, place, how):
    """However it names it: by key or its beginning, by study and code, by study and fresh seeds, in any layout."""
    store = tmp_path / "store"
    named, other = record(seed=FRESH_FROM + 5, code=OTHER), record(seed=6, code=OLD)
    stored(store, named, other)
    content = {
        "key": json.dumps({"runs": [named.key]}).encode(),
        "short": f"run {named.key[:9]} is the one".encode(),
        "fingerprint": f'study = "fold"\nfingerprint = "{OTHER}"\n'.encode(),
        "seeds": f'study = "fold"\nseeds = "fresh:{FRESH_FROM}"\n'.encode(),
        "pickle": pickle.dumps({"keys": [named.key]}, protocol=2),
        "binary": b"\xff\xfe\x00" + named.key.encode() + b"\x00\xff",
    }[how]
    (tmp_path / place).mkdir(parents=True)
    (tmp_path / place / "file").write_bytes(content)
    others = [tmp_path / "notes"] if place == "notes" else []
    found = kinds(folder, store, others)
    kind = "file" if place == "notes" else "escalation" if "escalations" in place else "sweep"
    assert found == {FRESH_FROM + 5: [kind], 6: []}


@pytest.mark.parametrize(
    "content", [f'study = "dwell"\nfingerprint = "{OTHER}"', 'study = "fold"\nseeds = "fresh:5000000"', "0" * 16]
)
def test_a_file_that_names_another_run_does_not(folder, tmp_path, content):
    stored(tmp_path / "store", record(seed=FRESH_FROM + 5, code=OTHER))
    (tmp_path / "escalations").mkdir()
    (tmp_path / "escalations" / "claim.toml").write_text(content)
    assert kinds(folder, tmp_path / "store") == {FRESH_FROM + 5: []}


def test_a_named_folder_without_manifest_stays_too_but_what_a_killed_writer_left_is_no_run(folder, tmp_path):
    store = tmp_path / "store"
    bare, aside, half = stored(store, *(record(seed=s, rollouts=rollouts()) for s in range(3)))
    (store / bare / "manifest.json").unlink()
    (store / aside).rename(store / f".incomplete-{aside}-0")
    (store / half).rename(store / f".writing-{half}-0")
    (tmp_path / "escalations").mkdir()
    (tmp_path / "escalations" / "claim.toml").write_text(f"{bare} {aside} {half}")
    assert kinds(folder, store) == {"incomplete": ["escalation"], "set aside": ["escalation"], "temporary": []}


def test_folders_and_files_that_are_not_there(folder, tmp_path):
    with pytest.raises(CommandError, match=r"no folder .*nowhere.*--folder"):
        collect([tmp_path / "nowhere"], tmp_path / "store")
    with pytest.raises(CommandError, match=r"there is no .*notes.md"):
        collect([folder], tmp_path / "store", [tmp_path / "notes.md"])


def test_a_folder_that_is_a_link_is_looked_into_and_one_that_cannot_be_listed_stops_everything(
    folder, tmp_path, monkeypatch
):
    (key,) = stored(tmp_path / "store", record(seed=3, code=OTHER))
    far = tmp_path / "far" / "below"
    far.mkdir(parents=True)
    (far / "ledger.json").write_text(key)
    (tmp_path / "sweeps").mkdir()
    (tmp_path / "sweeps" / "one").symlink_to(tmp_path / "far")
    (far / "round").symlink_to(tmp_path / "far")
    assert kinds(folder, tmp_path / "store") == {3: ["sweep"]}

    real = os.scandir

    def closed(path):
        if str(path).endswith("below"):
            raise PermissionError(13, "Permission denied", str(path))
        return real(path)

    monkeypatch.setattr(os, "scandir", closed)
    with pytest.raises(CommandError, match=r"below cannot be listed .*nobody can say which runs it refers to"):
        collect([folder], tmp_path / "store")


def test_a_file_that_cannot_be_read_stops_everything(folder, tmp_path):
    (tmp_path / "escalations").mkdir()
    (tmp_path / "escalations" / "claim.toml").symlink_to(tmp_path / "gone")
    with pytest.raises(CommandError, match="nobody can say which runs it refers to"):
        collect([folder], tmp_path / "store")
