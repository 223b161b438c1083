"""Tables in LaTeX with the rules of booktabs. Needs nothing else of fedloom."""

from __future__ import annotations

import re
from collections.abc import Sequence

_SIGNS = {
    "\\": r"\textbackslash{}",
    "&": r"\&",
    "%": r"\%",
    "$": r"\$",
    "#": r"\#",
    "_": r"\_",
    "{": r"\{",
    "}": r"\}",
    "~": r"\textasciitilde{}",
    "^": r"\textasciicircum{}",
    "<": r"\textless{}",
    ">": r"\textgreater{}",
    "±": r"$\pm$",
    "×": r"$\times$",
    "–": "--",
    "−": "$-$",
    "·": r"$\cdot$",
    "|": r"\textbar{}",
}
_COMMAND = re.compile(r"\\[a-z]+(\{\d+\}\{c\})?|[{}$&\\]")  # no letter of the page
_COLUMN, _PAGE = 55, 95  # characters that fit in a column, and over the page


def escaped(text: str) -> str:
    """Return text whose signs LaTeX prints as they are.

    Example:
        >>> print(escaped("a_b ± 5 %"))
        a\\_b $\\pm$ 5 \\%
    """
    return "".join(_SIGNS.get(sign, sign) for sign in " ".join(text.split()))


def bold(text: str) -> str:
    """Return escaped text in bold."""
    return rf"\textbf{{{text}}}"


def table_row(texts: Sequence[str]) -> str:
    """Return escaped texts as a line of a tabular."""
    line = f"{' & '.join(texts)} \\\\"
    return f"{{}}{line}" if line[0] in "[*" else line  # the rule or line break above would take these as its option


def latex_float(
    alignment: str, headings: Sequence[str], body: Sequence[str], caption: str, label: str, notes: Sequence[str] = ()
) -> str:
    """Return a table as a LaTeX float, whose preamble needs booktabs. A wide one takes the page, and small letters.

    Args:
        alignment: a letter for each column, "lrr".
        headings: the lines above the rule, as LaTeX.
        body: the lines below it, as LaTeX.
        caption: the caption as text, without a full stop; empty for none.
        label: the label.
        notes: sentences below the table, as text.
    """
    named = [rf"  \caption{{{escaped(caption)}.}}", rf"  \label{{{label}}}"] if caption else []
    small = [rf"  \par\smallskip{{\footnotesize {escaped(' '.join(notes))}\par}}"] if notes else []
    widest = max((len(_COMMAND.sub("", line)) for line in (*headings, *body)), default=0)
    float_name, size = "table*" if widest > _COLUMN else "table", r"\footnotesize" if widest > _PAGE else ""
    return "\n".join(
        (
            r"% \usepackage{booktabs}",
            rf"\begin{{{float_name}}}[tb]",
            rf"  \centering{size}",
            *named,
            rf"  \begin{{tabular}}{{@{{}}{alignment}@{{}}}}",
            r"    \toprule",
            *(f"    {line}" for line in headings),
            r"    \midrule",
            *(f"    {line}" for line in body),
            r"    \bottomrule",
            r"  \end{tabular}",
            *small,
            rf"\end{{{float_name}}}",
        )
    )
