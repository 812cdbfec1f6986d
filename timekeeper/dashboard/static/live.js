// Loads the same page every few seconds and replaces its live part where that has changed. It pauses while the
// tab is hidden, while text is selected, and when the visitor says so.
"use strict";
(function () {
  const EACH_MS = 5000;
  const KEY = "bursar-live";
  const button = document.getElementById("live-switch");
  const state = document.getElementById("live-state");
  const trouble = document.getElementById("live-trouble"); // a status: screen readers say what changes in it
  let timer = 0;
  let loadedMs = Date.now();
  let isOn = true;
  let missed = 0; // loads in succession that brought no page
  let since = ""; // the first of them

  if (!button || !document.querySelector("[data-live]")) return;

  function stored() {
    try {
      return window.sessionStorage.getItem(KEY) !== "off";
    } catch {
      return true;
    }
  }

  function place(element, root) {
    // the element's way down from the live part, to find its like in the new one
    const way = [];
    for (let each = element; each !== root; each = each.parentElement) {
      way.unshift(Array.prototype.indexOf.call(each.parentElement.children, each));
    }
    return way;
  }

  function replace(old, fresh) {
    if (old.innerHTML === fresh.innerHTML) return;
    const focused = old.contains(document.activeElement) ? place(document.activeElement, old) : null;
    const open = Array.from(old.querySelectorAll("details[open][id]"), (each) => each.id);
    const scrolled = Array.from(old.querySelectorAll(".table"), (each) => each.scrollLeft);
    old.replaceChildren(...fresh.childNodes);
    for (const id of open) {
      const details = document.getElementById(id);
      if (details) details.open = true;
    }
    old.querySelectorAll(".table").forEach((each, at) => { each.scrollLeft = scrolled[at] || 0; });
    if (focused) {
      let found = old;
      for (const at of focused) found = found.children[at] || found;
      found.focus({ preventScroll: true });
    }
  }

  function tell(text) {
    if (trouble.textContent !== text) trouble.textContent = text;
  }

  // The figures' time of day as the page has it, and how many minutes ago that was: "23:59" and 2 are "00:01".
  function clock(minutes) {
    const [hour, minute] = state.querySelector("time").textContent.match(/\d\d:\d\d/)[0].split(":").map(Number);
    const at = (60 * hour + minute + minutes) % 1440;
    return [Math.floor(at / 60), at % 60].map((part) => String(part).padStart(2, "0")).join(":");
  }

  function fail(what) {
    const seconds = new Date(state.querySelector("time").dateTime).getTime() % 60000;
    missed += 1;
    if (missed === 1) since = clock(Math.floor((seconds + Date.now() - loadedMs) / 60000));
    if (missed < 2) return;
    tell(`${what} since ${since}; figures of ${clock(0)}. Pods run on, and nothing is lost.`);
    show();
  }

  async function load() {
    const selection = window.getSelection();
    if (selection && !selection.isCollapsed) return;
    let answer;
    try {
      answer = await fetch(window.location.href, { headers: { Accept: "text/html" }, credentials: "same-origin" });
    } catch {
      fail("No answer");
      return;
    }
    if (answer.redirected) {
      window.location.reload(); // the session has ended
      return;
    }
    if (!answer.ok) {
      fail(answer.status < 500 ? `Answer ${answer.status}` : "No answer");
      return;
    }
    tell("");
    missed = 0;
    loadedMs = Date.now();
    show();
    const fresh = new DOMParser().parseFromString(await answer.text(), "text/html");
    document.querySelectorAll("[data-live]").forEach((old) => {
      const found = fresh.getElementById(old.id);
      if (found) replace(old, found);
    });
    const moment = fresh.getElementById("live-state");
    if (moment && state.innerHTML !== moment.innerHTML) state.replaceChildren(...moment.childNodes);
  }

  async function step() {
    await load();
    plan();
  }

  function plan() {
    window.clearTimeout(timer);
    if (isOn && !document.hidden) timer = window.setTimeout(step, EACH_MS);
  }

  function show() {
    const isAway = missed >= 2;
    button.classList.toggle("away", isAway);
    button.textContent = isAway ? "No answer" : isOn ? "Live" : "Paused";
    button.setAttribute("aria-pressed", String(isOn));
    button.setAttribute("aria-label", `${isAway ? "No answer. " : ""}Live updates are ${isOn ? "on" : "off"}`);
  }

  isOn = stored();
  button.hidden = false;
  show();
  button.addEventListener("click", function () {
    isOn = !isOn;
    try {
      window.sessionStorage.setItem(KEY, isOn ? "on" : "off");
    } catch {
      // the choice lasts for this page
    }
    show();
    if (isOn) step();
    else plan();
  });
  document.addEventListener("visibilitychange", function () {
    if (!document.hidden && isOn) step();
    else plan();
  });
  plan();
})();
