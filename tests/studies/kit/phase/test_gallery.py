import base64
import json

from studies.kit.phase.gallery import gallery

DRAWN = b"<svg><script>window.pwned = 1</script></svg>"


def swept(ledgers, study="mine", digest="0123456789", grid=("world.known", "group")):
    folder = ledgers / f"{study}-{digest}"
    (folder / "points").mkdir(parents=True)
    (folder / "sweep.json").write_text(json.dumps({"schema": 1, "study": study, "grid": {key: [1] for key in grid}}))
    (folder / "diagram.svg").write_bytes(DRAWN)
    for number in range(3):
        (folder / "points" / f"{number}.json").write_text("{}")
    return folder


def test_the_diagrams_of_the_named_studies_are_shown_as_images(tmp_path):
    folder = swept(tmp_path)
    swept(tmp_path, study="another")
    (found,) = gallery(tmp_path, ["mine", "none"])
    assert (found.study, found.folder, found.points) == ("mine", folder.name, 3)
    assert found.keys == ("world.known", "group")
    kind, text = found.image.split(",")
    assert kind == "data:image/svg+xml;base64"
    assert base64.b64decode(text) == DRAWN


def test_what_is_no_sweep_is_left_out(tmp_path):
    assert gallery(tmp_path / "nothing", ["mine"]) == ()
    for digest, text in (("a", "{"), ("b", '{"study": "mine"}'), ("c", "[]")):
        (swept(tmp_path, digest=digest) / "sweep.json").write_text(text)
    (swept(tmp_path, digest="d") / "sweep.json").unlink()
    bisected = swept(tmp_path, digest="e")
    (bisected / "diagram.svg").unlink()
    assert gallery(tmp_path, ["mine"]) == ()
