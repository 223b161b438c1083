"""The figures of the five papers: rows measured from finished runs, and the pictures of these rows."""
