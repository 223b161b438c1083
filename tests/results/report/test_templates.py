"""The templates escape text, keep markup, and refuse a value that is missing."""

import pytest
from jinja2 import UndefinedError
from markupsafe import Markup

from fedloom.results.data_table import DataTable
from fedloom.results.report.markup import bullets, render_macro, render_page, table

NASTY = '<script>"x"</script> & \''


def test_text_is_escaped_and_markup_is_kept():
    text = bullets([NASTY, Markup("<b>bold</b>")], css=NASTY)
    assert "<script" not in text
    assert "<li><b>bold</b></li>" in text


def test_columns_of_numbers_are_marked_and_have_the_number_to_sort_by():
    text = table(DataTable("t", "Caption", ("Name", "Size"), [[NASTY, ("1 kB", 1000.5)], ["b", ("–", None)]]))
    assert text.count('<th scope="row">') == 2
    assert '<td class="num" data-label="Size" data-value="1000.5">1 kB</td>' in text
    assert '<td class="num" data-label="Size">–</td>' in text
    assert "<script" not in text


def test_a_missing_value_is_an_error():
    with pytest.raises(UndefinedError, match="warnings"):
        render_page("page.html", title="Title")
    with pytest.raises(UndefinedError):
        render_macro("table.html", "data_cell", "text")
