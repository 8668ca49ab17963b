"""Each page's commands, line by line, in an environment that holds only what the page itself installs."""

import shutil
from itertools import groupby

import pytest

from tests.install.conftest import CLEAN
from tests.support.documented_world import application_run, documented_world
from tests.support.documents import INSTALLED, blocks

pytestmark = pytest.mark.install

_QUICK = {name: value for name, value in CLEAN.items() if name.startswith("PIP_")}
WALKED = {
    page: [block for block in group if block.language == "sh"]
    for page, group in groupby(blocks(), key=lambda block: block.page)
    if page.startswith(INSTALLED)
}


@pytest.fixture(scope="module")
def left(tmp_path_factory):
    return application_run(tmp_path_factory.mktemp("application"))


def test_every_page_with_commands_is_walked():
    assert {"README.md", "docs/quickstart.md", "docs/how-to/kafka-application.md"} <= set(WALKED)


@pytest.mark.parametrize("page", [page for page, group in WALKED.items() if group])
def test_page_works_with_what_it_installs(page, left, wheel, make_environment, tmp_path):
    programs = make_environment()
    for block in WALKED[page]:
        home = shutil.copytree(left.home, tmp_path / str(block.number), symlinks=True)
        if "forward" in block.text and "files:" not in block.text:
            shutil.rmtree(home / "landing")  # the block makes it
        with documented_world(left) as world:
            text = world.placed(block.text).replace("'.[", f"'{wheel}[").replace("pip install", "pip install --quiet")
            world.run(text, home, on_spark="spark-cluster" not in page, programs=programs, **_QUICK)
