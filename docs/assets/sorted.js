// Tables of accuracies sort by their headings. A column is of numbers if every cell begins with one, or is a dash.
document.addEventListener("DOMContentLoaded", function () {
  [].forEach.call(document.querySelectorAll(".md-typeset table:not([class])"), function (table) {
    var heads = [].slice.call(table.tHead.rows[0].cells), rows = [].slice.call(table.tBodies[0].rows);
    if (!heads.some(function (head) { return head.textContent === "accuracy %"; })) return;
    heads.forEach(function (head, column) {
      var cells = rows.map(function (row) { return row.cells[column]; });
      if (!cells.every(function (cell) { return /^(–|-?[\d,.]+( ±.*| =)?)$/.test(cell.textContent.trim()); })) return;
      head.className = "num";
      cells.forEach(function (cell) {
        var number = parseFloat(cell.textContent.replace(/,/g, ""));
        if (!isNaN(number)) cell.dataset.value = number;
      });
    });
    tables.sortable(table);
    if (rows.length >= 20) tables.filtered(table, table);
  });
});
