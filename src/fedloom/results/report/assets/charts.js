// Charts that are saved as SVG and PNG, in the colours of the theme that is shown. Works from a file, without network.
var charts = (function () {
  // The drawing as a file of its own: custom properties become colours, and the page's ground lies below it.
  function text(svg) {
    var style = getComputedStyle(document.documentElement), copy = svg.cloneNode(true), box = svg.viewBox.baseVal;
    var ground = document.createElementNS(svg.namespaceURI, "rect");
    [["width", box.width], ["height", box.height], ["fill", "var(--page)"]].forEach(function (pair) {
      ground.setAttribute(pair[0], pair[1]);
      copy.setAttribute(pair[0], pair[0] === "fill" ? "black" : pair[1]);
    });
    copy.insertBefore(ground, copy.querySelector("desc").nextSibling);
    copy.setAttribute("style", "font-family: system-ui, Arial, sans-serif; image-rendering: pixelated");
    copy.removeAttribute("class");
    return new XMLSerializer().serializeToString(copy).replace(/var\(--([\w-]+)\)/g, function (_, name) {
      return style.getPropertyValue("--" + name).trim();
    });
  }

  function download(name, address) {
    var link = document.createElement("a");
    link.download = name;
    link.href = address;
    link.click();
  }

  function save(svg, kind) {
    var name = svg.dataset.name + "." + kind, box = svg.viewBox.baseVal, scale = Math.max(2, 1600 / box.width);
    var address = "data:image/svg+xml;charset=utf-8," + encodeURIComponent(text(svg));
    if (kind === "svg") return download(name, address);
    var image = new Image(), canvas = document.createElement("canvas");
    image.onload = function () {
      canvas.width = Math.round(scale * box.width);
      canvas.height = Math.round(scale * box.height);
      canvas.getContext("2d").drawImage(image, 0, 0, canvas.width, canvas.height);
      download(name, canvas.toDataURL("image/png"));
    };
    image.src = address;
  }

  // Two buttons below a figure; they save the drawing that is shown, of the twins for wide and for narrow screens.
  function savable(figure) {
    var line = document.createElement("p");
    function drawings() {
      return [].slice.call(figure.querySelectorAll("svg[data-name]"));
    }
    if (!drawings().length) return;
    line.className = "note save";
    ["svg", "png"].forEach(function (kind) {
      var press = document.createElement("button");
      press.type = "button";
      press.textContent = kind.toUpperCase();
      press.setAttribute("aria-label", "Save “" + figure.querySelector("svg[data-name] title").textContent + "” as " + press.textContent);
      press.addEventListener("click", function () {
        var all = drawings();
        save(all.find(function (svg) { return getComputedStyle(svg).display !== "none"; }) || all[0], kind);
      });
      line.append(press);
    });
    figure.append(line);
  }

  return {savable: savable};
})();
