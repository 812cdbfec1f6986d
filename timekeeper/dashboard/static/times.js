// Writes each time in words, such as "3 hours ago", with the exact one in the viewer's zone on hover. In a
// sentence (class "exact"), and everywhere once the visitor asks for it, the two change places. Without this
// script a page shows exact times in UTC.
"use strict";
(function () {
  const KEY = "bursar-times";
  const EACH_MS = 30000;
  // from how many of a unit on it is used, and its length
  const UNITS = [
    ["year", 2, 31536e6], ["month", 2, 2592e6], ["day", 2, 864e5], ["hour", 1, 36e5], ["minute", 1, 6e4],
  ];
  const words = new Intl.RelativeTimeFormat("en", { numeric: "always" });
  const two = "2-digit";
  const digits = new Intl.DateTimeFormat("sv", {
    year: "numeric", month: two, day: two, hour: two, minute: two, second: two,
  });
  const zone = new Intl.DateTimeFormat("en", { timeZoneName: "short" });
  let serverMs = Date.now(); // when the page was written, by the server's clock
  let readMs = Date.now();   // the same moment by this one
  let isExact = false;

  function relative(ms) {
    const away = Math.abs(ms);
    const unit = UNITS.find(([, least, length]) => away >= least * length);
    if (!unit) return ms <= 0 ? "less than a minute ago" : "in less than a minute";
    return words.format(Math.trunc(ms / unit[2]), unit[0]);
  }

  function exact(at, withSeconds) {
    const name = zone.formatToParts(at).find((each) => each.type === "timeZoneName").value;
    return `${digits.format(at).slice(0, withSeconds ? 19 : 16)} ${name}`;
  }

  function write(root) {
    const written = root.getElementById("live-state");
    if (written && root !== document) {
      serverMs = Number(written.dataset.now);
      readMs = Date.now();
    }
    const nowMs = serverMs + Date.now() - readMs;
    for (const each of root.querySelectorAll("time[datetime]")) {
      const at = new Date(each.getAttribute("datetime"));
      if (isNaN(at)) continue; // a tenant's text can look like a time
      const other = relative(at.getTime() - nowMs);
      const isInWords = !isExact && !each.classList.contains("exact");
      const text = isInWords ? other : exact(at, false);
      const title = isInWords ? exact(at, true) : other;
      if (each.textContent !== text) each.textContent = text;
      if (each.title !== title) each.title = title;
    }
  }

  const state = document.getElementById("live-state");
  if (!state) return; // nobody is logged in, and the page has no times
  serverMs = Number(state.dataset.now);
  try {
    isExact = window.localStorage.getItem(KEY) === "exact";
  } catch {
    // storage may be off
  }
  document.getElementById("times-zone").textContent = `Times are those of ${zone.resolvedOptions().timeZone}`;
  const button = document.getElementById("times-switch");

  function show() {
    button.textContent = isExact ? "Show relative times" : "Show exact times";
    write(document);
  }

  button.hidden = false;
  show();
  button.addEventListener("click", function () {
    isExact = !isExact;
    try {
      window.localStorage.setItem(KEY, isExact ? "exact" : "relative");
    } catch {
      // the choice lasts for this page
    }
    show();
  });
  window.setInterval(() => write(document), EACH_MS);
  window.bursarTimes = write; // for pages that load themselves again
})();
