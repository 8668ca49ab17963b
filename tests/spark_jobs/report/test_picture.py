"""The picture of the report in the documents, where there is no browser to draw it."""

from tools.pictures import find_sections, main


def test_without_a_browser_a_line_says_that_nothing_was_drawn(tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("PATH", str(tmp_path))
    (tmp_path / "page.html").write_text("<h2>One</h2>")
    assert main(tmp_path / "page.html", tmp_path / "page.png") == 0
    assert "NOT DRAWN" in capsys.readouterr().out
    assert not (tmp_path / "page.png").exists()


def test_sections_are_the_headings_in_reading_order():
    assert find_sections('<h2 id="a-h">One</h2><h3>no</h3><h2>Two</h2>') == ["One", "Two"]
