// The list of methods narrows to those that meet the reader's needs. Without this script the whole list is shown.
document.addEventListener("DOMContentLoaded", function () {
  var list = document.querySelector(".needs table");
  if (!list) return;
  function times(traits) {  // of FedAvg's traffic; NaN where no study has measured it, so that it meets no bound
    var number = /([\d.]+) × FedAvg/.exec(traits);
    return number ? +number[1] : /nothing sent/.test(traits) ? 0 : /FedAvg's traffic/.test(traits) ? 1 : NaN;
  }
  function has(pattern) { return function (traits) { return pattern.test(traits); }; }
  function all() { return true; }
  // Each need: its name, and its choices with what a method's traits must say; the first choice leaves the list whole.
  var needs = [
    ["You want", ["either", all], ["one model for all", has(/model for all/)], ["a model for each client", has(/for each|and each/)]],
    ["The clients' networks", ["are equal", all], ["may differ", has(/any networks/)]],
    ["Traffic of a round", ["as it comes", all],
      ["at most FedAvg's", function (traits) { return times(traits) <= 1.02; }],
      ["at most a tenth", function (traits) { return times(traits) <= 0.1; }]],
    ["Clients may keep", ["a state", all], ["nothing", has(/no state/)]],
    ["New clients", ["do not come", all], ["are served at once", has(/newcomers at once/)]],
    ["Uploads", ["in the clear", all], ["as secure sums", has(/secure sums|nothing sent/)],
      ["with differential privacy", has(/privacy|nothing sent/)]],
  ];
  var rows = [].map.call(list.tBodies[0].rows, function (row) {
    var cell = row.cells[2], traits = cell.textContent;
    cell.textContent = "";
    traits.split(" · ").forEach(function (trait) {
      cell.append(made("span", trait), " ");
    });
    return { row: row, traits: traits };
  });

  function made(tag, text) {
    var element = document.createElement(tag);
    element.textContent = text || "";
    return element;
  }

  var form = made("form"), inputs = [];
  needs.forEach(function (need, number) {
    var group = made("fieldset");
    group.append(made("legend", need[0]));
    need.slice(1).forEach(function (choice, position) {
      var label = made("label"), input = made("input");
      input.type = "radio";
      input.name = "need-" + number;
      input.value = position;
      input.checked = !position;
      input.fits = choice[1];
      label.append(input, made("span", choice[0]));
      group.append(label);
      inputs.push(input);
    });
    form.append(group);
  });
  var state = made("p"), words = made("span"), whole = made("button", "Show all");
  words.setAttribute("role", "status");
  whole.type = "reset";
  state.append(words, whole);
  form.append(state);
  form.setAttribute("aria-label", "Your needs");

  // The methods that fit the choices made, with this one instead of that of its own need.
  function fitting(instead) {
    var chosen = inputs.filter(function (input) {
      return instead && input.name === instead.name ? input === instead : input.checked;
    });
    return rows.filter(function (method) {
      return chosen.every(function (input) { return input.fits(method.traits); });
    });
  }

  function narrow() {
    var left = fitting();
    rows.forEach(function (method) { method.row.hidden = left.indexOf(method) < 0; });
    inputs.forEach(function (input) { input.disabled = !input.checked && !fitting(input).length; });
    words.textContent = left.length === rows.length ? "All " + rows.length + " methods" : left.length + " of " + rows.length + " methods";
    whole.hidden = left.length === rows.length;
  }

  form.addEventListener("change", narrow);
  form.addEventListener("reset", function () { setTimeout(narrow); });
  list.closest(".needs").prepend(form);
  list.closest(".needs").classList.add("choosing");
  narrow();
});
