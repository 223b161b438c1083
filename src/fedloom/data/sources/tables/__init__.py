"""Tables: rows of numbers and words with a label, from CSV and Parquet files.

`files.py` reads a file, `columns.py` its columns, `words.py` refuses words that are meant as something else, and
`encoding.py` makes features of columns. `source.py` puts them together; `new_rows.py` is for a trained model.
"""

from fedloom.data.sources.tables.new_rows import table_rows
from fedloom.data.sources.tables.source import Csv, Parquet, TableSource

__all__ = ["Csv", "Parquet", "TableSource", "table_rows"]
