"use strict";
(function () {
  const trouble = document.getElementById("trouble");
  const news = document.getElementById("news");
  let answered = new Date(), told = Date.now();

  // Set only if it differs, because a screen reader reads each change.
  function say(text) {
    if (trouble.textContent !== text) trouble.textContent = text;
    trouble.hidden = !text;
  }

  function show(page) {
    document.title = page.title;
    const summary = page.querySelector("[data-part=summary]").textContent;
    // Screen readers read the news aloud, so a fast run must not change them at each refresh.
    if (summary !== news.textContent && (Date.now() - told > 20000 || !summary.startsWith("Running"))) {
      news.textContent = summary;
      told = Date.now();
    }
    document.querySelectorAll("[data-part]").forEach((part) => {
      const fresh = page.querySelector(`[data-part="${part.dataset.part}"]`);
      if (fresh === null || fresh.innerHTML === part.innerHTML) return;
      const focused = part.contains(document.activeElement);
      const left = Array.from(part.querySelectorAll(".scroll"), (box) => box.scrollLeft);
      part.replaceChildren(...fresh.childNodes);
      part.querySelectorAll(".scroll").forEach((box, k) => {
        box.scrollLeft = left[k] ?? 0;
        if (focused && k === 0) box.focus({ preventScroll: true });
      });
    });
  }

  async function refresh() {
    try {
      const reply = await fetch("/", { cache: "no-store", signal: AbortSignal.timeout(10000) });
      const text = await reply.text();
      answered = new Date();
      if (reply.ok) show(new DOMParser().parseFromString(text, "text/html"));
      say(reply.ok ? "" : text.trim());
    } catch {
      say(`This page is no longer served; it shows the run as of ${answered.toLocaleTimeString()}.`);
    }
    setTimeout(refresh, 2000);
  }

  setTimeout(refresh, 2000);
})();
