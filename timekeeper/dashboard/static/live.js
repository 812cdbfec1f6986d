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
  let isOn = true;
  let away = ""; // since when no page came

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

  function fail(what) {
    away = away || new Date().toLocaleTimeString();
    tell(`${what} since ${away}: the figures stand as of the time above. Pods run on and nothing is lost; trying again`);
  }

  async function load() {
    const selection = window.getSelection();
    if (selection && !selection.isCollapsed) return;
    let answer;
    try {
      answer = await fetch(window.location.href, { headers: { Accept: "text/html" }, credentials: "same-origin" });
    } catch {
      fail("The timekeeper does not answer");
      return;
    }
    if (answer.redirected) {
      window.location.reload(); // the session has ended
      return;
    }
    if (!answer.ok) {
      fail(answer.status < 500 ? `The timekeeper answered ${answer.status}` : "The timekeeper has no answer");
      return;
    }
    tell("");
    away = "";
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
    button.textContent = isOn ? "Live" : "Paused";
    button.setAttribute("aria-pressed", String(isOn));
    button.setAttribute("aria-label", isOn ? "Live updates are on" : "Live updates are off");
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
