(function () {
  var root = document.documentElement;
  var button = document.getElementById("theme");
  var system = window.matchMedia("(prefers-color-scheme: dark)");
  function dark() {
    return root.dataset.theme ? root.dataset.theme === "dark" : system.matches;
  }
  function label() {
    button.textContent = dark() ? "Light" : "Dark";
    button.setAttribute("aria-label", "Switch to the " + (dark() ? "light" : "dark") + " theme");
  }
  button.addEventListener("click", function () {
    root.dataset.theme = dark() ? "light" : "dark";
    label();
  });
  system.addEventListener("change", label);
  button.hidden = false;
  label();

  // Tables sort by their headings: a click, or Enter and Space, on one; again turns the order round.
  function sortable(table) {
    var heads = [].slice.call(table.tHead.rows[0].cells), body = table.tBodies[0];
    function key(row, column) {
      var cell = row.cells[column];
      if (cell.dataset.value !== undefined) return Number(cell.dataset.value);
      return heads[column].className === "num" ? null : cell.textContent;
    }
    function sort(column) {
      var down = heads[column].getAttribute("aria-sort") === "ascending", sign = down ? -1 : 1;
      heads.forEach(function (head) { head.removeAttribute("aria-sort"); });
      heads[column].setAttribute("aria-sort", down ? "descending" : "ascending");
      [].slice.call(body.rows).sort(function (a, b) {
        var x = key(a, column), y = key(b, column);
        if (x === null || y === null) return (x === null) - (y === null);  // what has no number comes last
        return sign * (typeof x === "number" ? x - y : x.localeCompare(y));
      }).forEach(function (row) { body.appendChild(row); });
    }
    heads.forEach(function (head, column) {
      var press = document.createElement("button");
      press.type = "button";
      press.textContent = head.textContent;
      press.addEventListener("click", function () { sort(column); });
      head.textContent = "";
      head.appendChild(press);
    });
  }
  [].forEach.call(document.querySelectorAll("table.sorts"), sortable);
})();
