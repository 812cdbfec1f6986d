// The colours that the visitor chose, before the first paint; without a choice those of the system.
"use strict";
(function () {
  const KEY = "bursar-theme";
  const root = document.documentElement;
  const dark = window.matchMedia("(prefers-color-scheme: dark)");

  function chosen() {
    try {
      return window.localStorage.getItem(KEY);
    } catch {
      return null; // storage may be off
    }
  }

  function isDark() {
    const word = root.dataset.theme;
    return word ? word === "dark" : dark.matches;
  }

  const word = chosen();
  if (word === "dark" || word === "light") root.dataset.theme = word;

  document.addEventListener("DOMContentLoaded", function () {
    const button = document.getElementById("theme-switch");
    function label() {
      button.textContent = isDark() ? "Light" : "Dark";
      button.setAttribute("aria-label", isDark() ? "Use light colours" : "Use dark colours");
    }
    button.hidden = false;
    label();
    dark.addEventListener("change", label);
    button.addEventListener("click", function () {
      root.dataset.theme = isDark() ? "light" : "dark";
      try {
        window.localStorage.setItem(KEY, root.dataset.theme);
      } catch {
        // the choice lasts for this page
      }
      label();
    });
  });
})();
