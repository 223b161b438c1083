// Tables that sort by their headings, and that show only the rows with the words somebody types. The report and the
// pages of the documentation share this file.
var tables = (function () {
  // Cells of numbers have data-value, their headings the class "num". A click, or Enter and Space, on a heading sorts;
  // again turns the order round. Where the headings are hidden, on a phone, a field above the cards does the same.
  function sortable(table) {
    var heads = [].slice.call(table.tHead.rows[0].cells), body = table.tBodies[0], listed = [].slice.call(body.rows);
    var label = document.createElement("label"), field = document.createElement("select");
    function key(row, column) {
      var cell = row.cells[column];
      if (cell.dataset.value !== undefined) return Number(cell.dataset.value);
      return heads[column].className === "num" ? null : cell.textContent;
    }
    function show(rows, column, down) {
      heads.forEach(function (head) { head.removeAttribute("aria-sort"); });
      if (column !== null) heads[column].setAttribute("aria-sort", down ? "descending" : "ascending");
      field.value = column === null ? "" : column + (down ? "-" : "+");
      rows.forEach(function (row) { body.appendChild(row); });
    }
    function sort(column, down) {
      var sign = down ? -1 : 1;
      show([].slice.call(body.rows).sort(function (a, b) {
        var x = key(a, column), y = key(b, column);
        if (x === null || y === null) return (x === null) - (y === null);  // what has no number comes last
        return sign * (typeof x === "number" ? x - y : x.localeCompare(y));
      }), column, down);
    }
    field.add(new Option("as listed", ""));
    heads.forEach(function (head, column) {
      var press = document.createElement("button");
      ["+", "-"].forEach(function (end) {
        field.add(new Option(head.textContent + (end === "+" ? " ↑" : " ↓"), column + end));
      });
      press.type = "button";
      press.textContent = head.textContent;
      press.addEventListener("click", function () { sort(column, head.getAttribute("aria-sort") === "ascending"); });
      head.textContent = "";
      head.appendChild(press);
    });
    field.addEventListener("change", function () {
      if (field.value) sort(parseInt(field.value, 10), field.value.slice(-1) === "-");
      else show(listed, null);
    });
    label.className = "filter sort-by";
    label.append("Sort by ", field);
    if (listed.length > 1) table.parentNode.insertBefore(label, table);
  }

  // A field before `box` that leaves the rows in which every typed word stands.
  function filtered(table, box) {
    var rows = [].slice.call(table.tBodies[0].rows), label = document.createElement("label");
    var field = document.createElement("input"), told = document.createElement("span");
    field.type = "search";
    told.setAttribute("role", "status");
    field.addEventListener("input", function () {
      var words = field.value.toLowerCase().split(/\s+/), left = 0;
      rows.forEach(function (row) {
        var text = row.textContent.toLowerCase();
        row.hidden = !words.every(function (word) { return text.indexOf(word) >= 0; });
        left += !row.hidden;
      });
      told.textContent = left < rows.length ? left + " of " + rows.length + " rows" : "";
    });
    label.className = "filter";
    label.append("Filter rows ", field, told);
    box.parentNode.insertBefore(label, box);
  }

  return {sortable: sortable, filtered: filtered};
})();
