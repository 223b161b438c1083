"""The audit of a table: cells and columns that mislead a model in silence, found before any training.

Each check is a function, and its docstring states the rule. The thresholds were measured on 311 real tables, so that at
most one table in ten has a false alarm."""

import json
import re
from collections.abc import Collection, Iterator
from dataclasses import replace

import numpy as np

from fedloom.data.findings import LEAK, LISTED, DataFinding, DataFindings
from fedloom.data.labels import ID_NAME, near_twins
from fedloom.data.sites import FACTORS, unlike_columns
from fedloom.data.sources.tables.audited_table import (
    FEW_ROWS,
    SEVERAL,
    AuditedTable,
    agreement,
    are_one_to_one,
    as_floats,
    drop,
    is_fractional,
    neighbours,
)
from fedloom.data.sources.tables.columns import Column

_NOTED = ("group-like", "sentinel", "contradiction", "look-alikes", "codes", "id", "tells the label", "tells the owner")
_MOST_SENTINELS = 4
_OWNERS = 100
_TIMES = re.compile(r"(?i)(.*[ _.-])?(years?|yr|months?|weeks?|days?|dates?|hours?|times?|t)")
_LATER_NAMES = re.compile(
    r"(.*[ _.-])?(status|death|dead|died|event|censor(ed|ing)?|follow[ _.-]?up|futime|surv(ival)?([ _.-]?time)?|los|"
    r"length[ _.-]?of[ _.-]?stay|discharged?|relapsed?|recurrence)",
    re.IGNORECASE,
)
_FOLLOWED = re.compile(r"(?i)(.*[ _.-])?time")
_EVENTS = re.compile(r"(?i)status|delta|death|dead|died|event|cens(or(ed|ing)?)?|fail(ure|ed)?|relapsed?|recurrence")


def audit_table(table: AuditedTable, is_run: bool = False) -> DataFindings:
    """Return the findings of all checks, for a run of those that it notes; below ten rows only names are compared."""
    checks = [sentinels_and_units, contradictions, codes_as_numbers, constants, ids, group_columns, tellers]
    checks += [] if is_run else [unlike_owners, known_later]
    found = [*table.refused, *look_alikes(table)]
    found += [finding for check in checks for finding in check(table)] if len(table.numbers) >= FEW_ROWS else []
    refused = {finding.column for finding in table.refused}
    # A refusal also says how to read a column that looks like an id because of a few cells, such as '51.5 kg'.
    found = [finding for finding in found if finding.check != "id" or finding.column not in refused]
    rows, columns = (len(table.numbers), table.whole.rows), (len(table.file.columns), len(table.whole.columns))
    if rows[0] < rows[1] or columns[0] < columns[1]:
        rule = f"the audit looked at {rows[0]:,} of {rows[1]:,} rows, and {columns[0]:,} of {columns[1]:,} columns"
        found.append(table.finding("part", "", rule, "", is_note=True))
    return DataFindings(sorted(found, key=lambda finding: finding.is_note))


def run_notes(table: AuditedTable, has_groups: bool) -> list[str]:
    """Return a sentence on each kind of finding that changes a run's numbers. has_groups: whether groups are known."""
    findings = audit_table(table, is_run=True)
    notes = [f"{table.file.path}: {finding.rule}" for finding in findings if finding.check == "part"]
    for check in _NOTED[has_groups:]:
        found = [f for f in findings if f.check == check and (check == "id" or not f.is_note)]
        found = [f for f in found if check != "look-alikes" or f.column != table.label]  # classes have notes already
        if found:
            names = ", ".join(repr(finding.column) for finding in found)[:200]
            notes.append(f"{table.file.path}: {check}: {names}: {found[0].rule}; say {found[0].key}")
    return notes


# -- cells -------------------------------------------------------------------------------------------------------------
def sentinels_and_units(table: AuditedTable) -> Iterator[DataFinding]:
    """Yield sentinels, and among the other cells lone values and mixed units, of the numeric features."""
    apart = {name for name in table.measurements if name in table.groups or ID_NAME.fullmatch(name)}
    measured = {name: values for name, values in table.measurements.items() if name not in apart}
    sentinels = {name: sentinel_values(values) for name, values in measured.items()}
    for name, values in measured.items():
        cells = np.where(np.isin(values, sentinels[name]), np.nan, values)
        for sentinel in sentinels[name]:
            held, text = values == sentinel, f"{sentinel:.15g}"
            # `missing` holds for all columns, and a 0 that means nothing here may be a number or a name there.
            elsewhere = any(
                _holds(table, of, sentinel) and sentinel not in sentinels.get(of, ()) for of in table.columns
            )
            key = f"empty these cells, or {drop(name)}" if elsewhere else table.missing([text])
            rest = f"the others lie in {np.nanmin(cells):g} .. {np.nanmax(cells):g}"
            rule = f"{text} stands in {held.sum():,} cells and seems to mean a missing value: {rest}"
            is_note = re.fullmatch(r"-\d+|0|7+|8+|9+", text) is None  # those of 7 in 176 real tables were numbers
            yield table.finding("sentinel", name, rule, key, held, is_note)
        if (lone := lone_cells(cells)).any():
            low, median, high = np.nanquantile(cells, [0.25, 0.5, 0.75])
            furthest = cells[np.nanargmax(np.abs(cells - median))]
            rule = f"{furthest:g} is {abs(furthest - median) / (high - low):,.0f} IQR from the median {median:g}"
            yield table.finding("lone value", name, rule, "mend the cell in the file", lone)
        elif (parts := unit_parts(cells)) is not None:
            small, factor = parts
            rarer = small if 2 * small.sum() <= np.isfinite(cells).sum() else (cells > 0) & ~small
            ratio = np.median(cells[(cells > 0) & ~small]) / np.median(cells[small])
            rule = f"two separate ranges whose medians differ {ratio:.3g} times, as {FACTORS[factor]} do"
            yield table.finding("mixed units", name, rule, "bring the column to one unit in the file", rarer)


def _holds(table: AuditedTable, name: str, number: float) -> bool:
    column, cell_format = table.columns[name], table.reader.cell_format
    if column.words is not None:
        return number in {cell_format.number(word) for word in column.words}
    return bool((column.present_values == number).any())


def sentinel_values(values: np.ndarray) -> list[float]:
    """Return the numbers among values [n] that stand for a missing one.

    Of a column with at least 20 different values, the least or the largest value v counts, by its distance from the
    others over their q95 - q05: at least 0.5 for -1 and all 7s, 8s or 9s in 2 rows or more; 1 for any whole v in 3 rows
    and 0.5 % of them; 0.25 for the least v of a column without negative numbers, in 2 rows and at most half of them,
    if the others have a median of 10 or more and q01 of a quarter of it."""
    cells, sentinels = values[np.isfinite(values)], list[float]()
    if len(np.unique(cells)) < SEVERAL:
        return sentinels
    while len(sentinels) < _MOST_SENTINELS:
        extreme = next((v for v in (cells.min(), cells.max()) if _is_sentinel(v, cells)), None)
        if extreme is None:
            break
        sentinels.append(float(extreme))
        cells = cells[cells != extreme]
    return sentinels


def _is_sentinel(value: float, cells: np.ndarray) -> bool:
    rest, count = cells[cells != value], int((cells == value).sum())
    if count < 2 or len(rest) < FEW_ROWS:
        return False
    q01, q05, median, q95 = np.quantile(rest, [0.01, 0.05, 0.5, 0.95])
    distance = np.abs(rest - value).min() / (q95 - q05) if q95 > q05 else 0
    is_code = value == -1 or re.fullmatch("7+|8+|9+", f"{abs(value):.15g}") is not None
    is_floor = 0 <= value < rest.min() and count <= len(cells) / 2 and median >= 10 and q01 >= median / 4
    is_frequent = value == int(value) and count >= max(3, 0.005 * len(cells))
    return bool((is_code and distance >= 0.5) or (is_frequent and distance >= 1) or (is_floor and distance >= 0.25))


def lone_cells(values: np.ndarray) -> np.ndarray:
    """Return which one or two of the values [n] are more than 50 IQR from the median, and 5 IQR of the logarithms if
    all are positive, since sums of money have long tails; bool [n], none if more are."""
    far = np.isfinite(values) & (np.isfinite(values).sum() >= FEW_ROWS)
    scales = [(values, 50)] + ([(np.log(values), 5)] if far.any() and np.nanmin(values) > 0 else [])
    for numbers, most in scales if far.any() else []:
        low, median, high = np.nanquantile(numbers, [0.25, 0.5, 0.75])
        far = far & (np.abs(numbers - median) > most * (high - low)) & (high > low)
    return far if far.sum() <= 2 else np.zeros(len(values), bool)


def unit_parts(values: np.ndarray) -> tuple[np.ndarray, float] | None:
    """Return which of the values [n] are in the smaller numbers of two units, and the factor between these; or None.

    Positive values are cut at the widest gap of their logarithms. Both parts have 5 rows and 2 % of them at least, and
    5 different values; the gap is at least the wider q90 - q10; the medians' ratio is within 15 % of a factor."""
    positive = values > 0
    logs = np.sort(np.log(values[positive]))
    if len(logs) < FEW_ROWS or (values < 0).any():
        return None
    cut = int(np.argmax(np.diff(logs))) + 1
    low, high = logs[:cut], logs[cut:]
    if min(cut, len(logs) - cut) < max(5, 0.02 * len(logs)) or min(len(np.unique(low)), len(np.unique(high))) < 5:
        return None
    width = max(np.subtract(*np.quantile(part, [0.9, 0.1])) for part in (low, high))
    factor = _factor(np.exp(np.median(high) - np.median(low)))
    is_apart = high[0] - low[-1] >= width
    return (positive & (values < np.exp((low[-1] + high[0]) / 2)), factor) if factor and is_apart else None


def unlike_owners(table: AuditedTable) -> Iterator[DataFinding]:
    """Yield features of which one of the 100 largest owners has another unit, mark, code or order than the others."""
    if table.owner is None or table.owner in table.unused or not table.measurements:
        return
    codes, names = table.codes[table.owner], table.columns[table.owner].as_words().words or ()
    owners = np.argsort(-np.bincount(codes[codes >= 0], minlength=len(names)), kind="stable")[:_OWNERS]
    values = np.stack([*table.measurements.values()], 1)
    rows = [np.ma.masked_invalid(values[codes == owner]) for owner in owners]
    means, deviations = (np.array([getattr(of, key)(0).filled(0.0) for of in rows]) for key in ("mean", "std"))
    counts = np.array([of.count(0) for of in rows])
    for unlike in unlike_columns([*table.measurements], means, deviations, counts):
        if not unlike.is_note:
            rule = f"owner '{names[owners[unlike.site]]}': {unlike.numbers}: {unlike.reason}"
            held = codes == owners[unlike.site]
            yield table.finding("unlike owner", unlike.column, rule, "mend the cells of this owner in the file", held)


def _factor(ratio: float) -> float | None:
    return min((f for f in FACTORS if abs(ratio / f - 1) <= 0.15), key=lambda f: abs(ratio / f - 1), default=None)


def contradictions(table: AuditedTable) -> Iterator[DataFinding]:
    """Yield the rows that have equal features and different labels: an alarm if a feature is fractional with different
    values in more than half of the rows, else a count. Ids are no features here."""
    if table.classes is None or len(table.file.columns) < len(table.whole.columns):
        return
    present = table.classes >= 0
    used = [name for name in table.features if table.codes[name].max(initial=-1) > 0 and not _is_id(table, name)]
    rows = np.stack([table.codes[name] for name in used], 1) if used else np.zeros((len(present), 0))
    same = np.unique([hash(row.tobytes()) for row in rows], return_inverse=True)[1]
    pairs = np.unique(np.stack([same[present], table.classes[present]]), axis=1)
    held = present & (np.bincount(pairs[0], minlength=len(same) + 1)[same] > 1)
    is_exact = any(is_fractional(table, name) and 2 * (table.codes[name].max() + 1) > len(present) for name in used)
    if used and held.any():
        rule = f"{held.sum():,} rows have the features of a row with another label"
        yield table.finding("contradiction", table.label or "", rule, "mend the labels in the file", held, not is_exact)


# -- names -------------------------------------------------------------------------------------------------------------
def look_alikes(table: AuditedTable) -> Iterator[DataFinding]:
    """Yield words of a label, an owner or a feature that `labels.folded` makes equal: they differ in case, accents,
    invisible characters, letters of other scripts, dashes, quotes or blanks."""
    for name, column in table.columns.items():
        counts = column.counts() if name not in table.unused else {}
        twins = [sorted(words, key=counts.__getitem__) for words in near_twins(counts)]
        seen = {word: word if word.isascii() else f"{word}, i.e. {ascii(word)[1:-1]}" for word in counts}
        named = (" like ".join(f"'{seen[word]}' ({counts[word]:,})" for word in words) for words in twins[:LISTED])
        if twins:
            held = _holding(column, {word for words in twins for word in words[:-1]})
            rule = f"spellings of one name: {'; '.join(named)}"
            yield table.finding("look-alikes", name, rule, "spell each name the same way in the file", held)


def codes_as_numbers(table: AuditedTable) -> Iterator[DataFinding]:
    """Yield features of digits that are codes: two texts are one number (01 and 1), or all have one width of 2 or more
    and some begin with 0. As numbers they lose their zeros."""
    whole = [name for name, of in table.features.items() if of.is_numeric() and of.values.dtype.kind in "iu"]
    for name, column in table.reader.texts(table.file, [] if table.reader.typed else whole).items():
        words = [*column.counts()]
        if not words or not all(word.isascii() and word.isdecimal() for word in words):
            continue
        zeros = [word for word in words if len(word) > 1 and word[0] == "0"]
        is_merged, widths = len({int(word) for word in words}) < len(words), {len(word) for word in words}
        if zeros and (is_merged or len(widths) == 1):
            held = _holding(column, zeros)
            why = "two spellings become one number" if is_merged else f"every cell has {widths.pop()} digits"
            rule = f"'{zeros[0]}' loses its zero as a number, and {why}: these are codes"
            yield table.finding("codes", name, rule, drop(name).replace("drop", "categorical", 1), held)


# -- columns -----------------------------------------------------------------------------------------------------------
def constants(table: AuditedTable) -> Iterator[DataFinding]:
    """Yield features with a single value, or with none."""
    for name, column in table.features.items():
        different, missing = int(table.codes[name].max(initial=-1)) + 1, int(column.is_missing.sum())
        rule = f"all filled cells are the same, and {missing:,} are empty" if different else "all cells are empty"
        if different <= 1:
            yield table.finding("constant", name, rule.replace(", and 0 are empty", ""), drop(name))


def ids(table: AuditedTable) -> Iterator[DataFinding]:
    """Yield features of words or whole numbers with a different value in every row, from 20 rows on. Without the name
    of an id, whole numbers that are neither row numbers nor dense make a note, as populations; so do years."""
    for name, column in table.features.items():
        if _is_id(table, name):
            values, counts = as_floats(column) if column.is_numeric() else np.zeros(2), len(column.present_values)
            steps, span = np.diff(values), np.nanmax(values) - np.nanmin(values)
            is_measured = bool(span > 2 * counts) or _TIMES.fullmatch(name) is not None
            is_note = column.is_numeric() and is_measured and ID_NAME.fullmatch(name) is None
            rule = f"each of its {counts:,} cells has a value of its own, as ids and free text do"
            rule = "it counts the rows" if abs(steps[0]) == 1 and (steps == steps[0]).all() else rule
            yield table.finding("id", name, rule, drop(name), is_note=is_note)
        elif ID_NAME.fullmatch(name) and name not in table.groups:
            yield table.finding("id", name, "it has the name of an id", drop(name), is_note=True)


def _is_id(table: AuditedTable, name: str) -> bool:
    codes = table.codes[name]
    rows = int((codes >= 0).sum())
    return rows >= SEVERAL and codes.max() + 1 == rows and not is_fractional(table, name)


def group_columns(table: AuditedTable) -> Iterator[DataFinding]:
    """Yield the group-like columns: their rows leak between training and test data, dropped columns too."""
    for name, dependent in table.groups.items():
        sizes = np.bincount(table.codes[name][table.codes[name] >= 0])
        rows = int(sizes[sizes > 1].sum())
        proof = f" (constant within each: {', '.join(dependent[:LISTED])})" if dependent else ""
        rule = (
            f"{(sizes > 0).sum():,} values in {sizes.sum():,} rows, {np.median(sizes):g} rows each (median), as of "
            f"persons{proof}: {LEAK}"
        )
        plain = name if re.fullmatch(r"[A-Za-z]\w*", name) else json.dumps(name, ensure_ascii=False)
        yield replace(table.finding("group-like", name, rule, f"scenario.group: {plain}"), rows=rows)


def known_later(table: AuditedTable) -> Iterator[DataFinding]:
    """Yield features that are known after the time of prediction only: constant within groups, and never below a time
    that rises in them, with which they correlate by more than 0.2 (`futime` over `day`); and a time of 20 values or
    more that parts the two or three values of an event by an AUROC of 0.65 (`time` beside `status`), as patients who
    die are followed for a shorter time. A name such as death or followup alone makes a note."""
    later = dict[str, str]()
    events = [name for name, codes in table.codes.items() if _EVENTS.fullmatch(name) and 1 <= codes.max(initial=0) <= 2]
    for name in table.measurements if events else ():
        if _FOLLOWED.fullmatch(name) and table.codes[name].max(initial=0) + 1 >= SEVERAL:
            areas = {_least_auroc(table.codes[name], table.codes[event]): event for event in events}
            if (area := max(areas)) >= 0.65:
                later[name] = f"a time that parts '{areas[area]}' (AUROC {area:.2f}), as that of follow-up does"
    for group in table.groups:
        before, after = neighbours(table.codes[group])
        others = {name: of for name, of in table.measurements.items() if name != group and not ID_NAME.fullmatch(name)}
        rising = {name: values for name, values in others.items() if _rises(values[after] - values[before])}
        later = {name: rule for name, rule in later.items() if name not in rising}  # such as the time of a visit
        for name in [name for name in others if agreement((before, after), table.codes[name]) >= 0.95]:
            if time := next((time for time, values in rising.items() if _follows(others[name], values)), None):
                later[name] = f"the same in all rows of each '{group}', and never below '{time}': known after it only"
    for name in table.features:
        if name in later or _LATER_NAMES.fullmatch(name):
            rule = later.get(name, "by its name it is known after the time of prediction only")
            yield table.finding("known later", name, rule, drop(name), is_note=name not in later)


def _rises(steps: np.ndarray) -> bool:
    steps = steps[np.isfinite(steps)]
    return len(steps) >= 5 and bool((steps >= 0).mean() >= 0.95 and (steps > 0).mean() >= 0.5)


def _follows(values: np.ndarray, times: np.ndarray) -> bool:
    values, times = np.stack([values, times])[:, np.isfinite(values) & np.isfinite(times)]
    varies = len(values) >= FEW_ROWS and min(np.ptp(values), np.ptp(times)) > 0
    return bool(varies and (values >= times).all() and np.corrcoef(values, times)[0, 1] > 0.2)


def tellers(table: AuditedTable) -> Iterator[DataFinding]:
    """Yield features that restate the label or the owner: they stand for it one to one, or their AUROC is at least 0.99
    for every class, by their order or by the share of the class among equal values (10 rows each on average). The AUROC
    takes 10 rows or more of each class; ids and groups are left out."""
    owners = None if table.owner is None else table.codes[table.owner]
    for name in table.features:
        codes, classes, is_whole = table.codes[name], table.classes, not is_fractional(table, name)
        if name in table.groups or _is_id(table, name):
            continue
        if is_whole and owners is not None and are_one_to_one(codes, owners):
            yield table.finding("tells the owner", name, "one value for each owner: it says whose a row is", drop(name))
        if classes is None:
            continue
        least = 1.0 if is_whole and are_one_to_one(codes, classes) else _least_auroc(codes, classes)
        if least >= 0.99:
            rule = f"it alone tells every class (AUROC {least:.3f} or more): does it restate the label?"
            yield table.finding("tells the label", name, rule, drop(name))


def _least_auroc(codes: np.ndarray, classes: np.ndarray) -> float:
    """Return the lowest AUROC of a class by the codes of a feature, [n] each; 0 with fewer than 10 rows of a class."""
    present = (codes >= 0) & (classes >= 0)
    number, codes, classes = int(classes.max()) + 1, codes[present], classes[present]
    counts, sizes = np.bincount(classes, minlength=number), np.bincount(codes)
    if counts.min() < FEW_ROWS:
        return 0.0
    middle = np.cumsum(sizes) - (sizes - 1) / 2  # the mean rank of equal values
    pairs = counts * (len(codes) - counts)
    areas = (np.bincount(classes, middle[codes], number) - counts * (counts + 1) / 2) / pairs
    areas = np.maximum(areas, 1 - areas)
    if len(codes) >= FEW_ROWS * len(sizes):
        held = np.bincount(codes * number + classes, minlength=len(sizes) * number).reshape(-1, number)
        order = np.argsort(held / np.maximum(sizes, 1)[:, None], axis=0)
        inside = np.take_along_axis(held, order, 0)
        outside = sizes[order] - inside
        areas = np.maximum(areas, (inside * (np.cumsum(outside, 0) - outside / 2)).sum(0) / pairs)
    return float(areas.min())


def _holding(column: Column, words: Collection[str]) -> np.ndarray:
    """Return which cells of a column hold one of the words, bool [n]."""
    codes = [code for code, word in enumerate(column.words or ()) if word in words]
    return np.asarray(np.isin(column.values, codes) & ~column.is_missing)
