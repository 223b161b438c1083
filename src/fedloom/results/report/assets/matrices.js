// The confusion matrix of one client, which a field chooses. Works from a file, without network.
var matrices = (function () {
  var WIDTH = 390, CHARACTER = 7.2, TEXT = 12, WITH_COUNTS = 12, STEP = 14;
  var parsed = document.createElement("div");
  parsed.innerHTML = "<svg></svg>";
  var space = parsed.firstChild.namespaceURI;

  function shortened(name) {
    return name.length > 14 ? name.slice(0, 7) + "…" + name.slice(-6) : name;
  }

  function add(parent, tag, attributes, text) {
    var element = document.createElementNS(space, tag);
    Object.keys(attributes).forEach(function (key) { element.setAttribute(key, attributes[key]); });
    if (text !== undefined) element.textContent = text;
    parent.append(element);
    return element;
  }

  // The numbers of a client as cells, with the share of each in its row, and as a sentence.
  function read(client, classes) {
    var cells = [], rows = classes.map(function () { return 0; }), correct = 0, total = 0;
    for (var k = 0; k < client[1].length; k += 3) {
      cells.push({true: client[1][k], predicted: client[1][k + 1], samples: client[1][k + 2]});
    }
    cells.forEach(function (cell) {
      rows[cell.true] += cell.samples;
      total += cell.samples;
      correct += cell.true === cell.predicted ? cell.samples : 0;
    });
    cells.forEach(function (cell) { cell.share = cell.samples / rows[cell.true]; });
    var wrong = cells.filter(function (cell) { return cell.true !== cell.predicted; });
    wrong.sort(function (a, b) { return b.samples - a.samples; });
    var named = wrong.slice(0, 3).map(function (cell) {
      return classes[cell.true] + " taken for " + classes[cell.predicted] + " (" + cell.samples + ")";
    });
    var words = correct + " of " + total + " test samples are correct.";
    return {cells: cells, words: words + (named.length ? " Most frequent mistakes: " + named.join(", ") + "." : "")};
  }

  function drawing(name, title, client, classes) {
    var longest = Math.max.apply(null, classes.map(function (label) { return shortened(label).length; }));
    var room = 40 + CHARACTER * longest, side = (WIDTH - room - 4) / classes.length, height = Math.min(side, 44);
    var step = Math.ceil(STEP / height), box = [0, 0, WIDTH, Math.round(room + height * classes.length + 4)];
    var svg = add(document.createElement("div"), "svg", {
      viewBox: box.join(" "), style: "max-width: " + 1.25 * WIDTH + "px", role: "img", "aria-labelledby": name + "-title",
      "aria-describedby": name + "-desc", "data-name": name,
    });
    var found = read(client, classes);
    add(svg, "title", {id: name + "-title"}, title + ": client " + client[0]);
    add(svg, "desc", {id: name + "-desc"}, found.words);
    var muted = {"font-size": TEXT, fill: "var(--muted)", "text-anchor": "middle"}, middle = (WIDTH + room) / 2;
    add(svg, "text", Object.assign({x: middle, y: TEXT}, muted), "predicted class");
    var turned = "translate(" + TEXT + " " + (box[3] + room) / 2 + ") rotate(-90)";
    add(svg, "text", Object.assign({transform: turned}, muted), "true class");
    add(svg, "rect", {x: room, y: room, width: side * classes.length, height: height * classes.length, fill: "none",
                      stroke: "var(--line)"});
    classes.forEach(function (label, k) {
      if (k % step) return;
      var text = {"font-size": TEXT, fill: "var(--ink)"}, x = room + (k + 0.5) * side + 4, y = room + (k + 0.5) * height + 4;
      add(svg, "text", Object.assign({x: room - 6, y: y, "text-anchor": "end"}, text), shortened(label));
      var above = "translate(" + x + " " + (room - 6) + ") rotate(-90)";
      add(svg, "text", Object.assign({transform: above}, text), shortened(label));
    });
    found.cells.forEach(function (cell) {
      var x = room + cell.predicted * side, y = room + cell.true * height;
      var color = cell.true === cell.predicted ? "#337dbf" : "#d96b0d";
      var area = add(svg, "rect", {x: x, y: y, width: side, height: height, fill: color,
                                   "fill-opacity": (0.7 * Math.sqrt(cell.share)).toFixed(3)});
      var words = classes[cell.true] + " predicted as " + classes[cell.predicted] + ": " + cell.samples;
      add(area, "title", {}, words);
      if (classes.length > WITH_COUNTS) return;
      var size = Math.min(TEXT, 1.7 * side / String(cell.samples).length);
      add(svg, "text", {x: x + side / 2, y: y + height / 2 + size / 3, "font-size": size, fill: "var(--ink)",
                        "text-anchor": "middle", "pointer-events": "none"}, cell.samples);
    });
    return {svg: svg, words: found.words};
  }

  function choosable(figure) {
    var data = JSON.parse(figure.dataset.matrices), status = figure.querySelector("[role=status]");
    var label = document.createElement("label"), field = document.createElement("select"), shown = null;
    function show() {
      var client = data.clients[field.selectedIndex];
      var drawn = drawing(figure.dataset.save, figure.dataset.title, client, data.classes);
      if (shown) shown.replaceWith(drawn.svg); else status.before(drawn.svg);
      shown = drawn.svg;
      status.textContent = drawn.words;
    }
    data.clients.forEach(function (client) { field.add(new Option("client " + client[0])); });
    label.className = "filter";
    label.append("Client ", field);
    status.before(label);
    field.addEventListener("change", show);
    show();
  }

  return {choosable: choosable};
})();
