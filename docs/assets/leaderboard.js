// Ranked tables: a field that shows one scenario at a time, and a bar behind each accuracy. Without a script all tables
// are shown.
document.addEventListener("DOMContentLoaded", function () {
  var tables = [].slice.call(document.querySelectorAll(".md-typeset table:not([class])")).filter(function (table) {
    return table.tHead.rows[0].cells[0].textContent === "rank";
  });
  if (!tables.length) return;
  var blocks = tables.map(function (table) {
    var column = [].slice.call(table.tHead.rows[0].cells).findIndex(function (head) { return head.textContent === "accuracy %"; });
    [].forEach.call(table.tBodies[0].rows, function (row) {
      var cell = row.cells[column];
      cell.className += " share";
      cell.style.setProperty("--share", parseFloat(cell.textContent) + "%");
    });
    // From the heading before the table on, up to the next heading.
    var node = table;
    while (node.parentNode !== tables[0].closest("article, .md-content__inner, .md-typeset") && node.parentNode) node = node.parentNode;
    while (node && node.tagName !== "H2") node = node.previousElementSibling;
    var parts = [node];
    for (var next = node.nextElementSibling; next && next.tagName !== "H2"; next = next.nextElementSibling) parts.push(next);
    return {title: node.firstChild.textContent, id: node.id, parts: parts};
  });
  var label = document.createElement("label"), field = document.createElement("select");
  blocks.forEach(function (block) { field.add(new Option(block.title, block.id)); });
  function show() {
    blocks.forEach(function (block) {
      block.parts.forEach(function (part) { part.hidden = block.id !== field.value; });
    });
  }
  function follow() {
    var id = decodeURIComponent(location.hash.slice(1));
    if (blocks.some(function (block) { return block.id === id; })) field.value = id;
    show();
  }
  label.className = "filter scenario";
  label.append("Scenario and protocol ", field);
  field.addEventListener("change", show);
  window.addEventListener("hashchange", follow);
  blocks[0].parts[0].before(label);
  follow();
});
