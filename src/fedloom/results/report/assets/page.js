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

  // Folds of which a field shows one.
  [].forEach.call(document.querySelectorAll(".choices"), function (box) {
    var folds = [].slice.call(box.children), label = document.createElement("label"), field = document.createElement("select");
    function show() {
      folds.forEach(function (part, k) {
        part.hidden = k !== field.selectedIndex;
        part.open = true;
      });
    }
    folds.forEach(function (part) {
      part.classList.add("picked");
      field.add(new Option(part.querySelector("summary").textContent));
    });
    label.className = "filter";
    label.append(box.dataset.label + " ", field);
    field.addEventListener("change", show);
    box.insertBefore(label, box.firstChild);
    show();
  });
  [].forEach.call(document.querySelectorAll(".client-confusion"), matrices.choosable);
  [].forEach.call(document.querySelectorAll("figure"), charts.savable);
  [].forEach.call(document.querySelectorAll("table.sorts"), function (table) {
    tables.sortable(table);
    if (table.tBodies[0].rows.length >= 8) tables.filtered(table, table.parentNode);
  });
})();
