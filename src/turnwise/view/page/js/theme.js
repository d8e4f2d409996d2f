// Dark or light: as the system says, until somebody chooses.

const KEY = "turnwise.theme";
const system = matchMedia("(prefers-color-scheme: dark)");
let chosen = null;
try {
  chosen = localStorage.getItem(KEY);
} catch {
  /* follows the system */
}

export function currentTheme() {
  return chosen === "dark" || chosen === "light" ? chosen : system.matches ? "dark" : "light";
}

function show() {
  const changed = document.documentElement.dataset.theme !== currentTheme();
  document.documentElement.dataset.theme = currentTheme();
  if (changed) dispatchEvent(new Event("turnwise:theme"));
}

export function switchTheme() {
  chosen = currentTheme() === "dark" ? "light" : "dark";
  try {
    localStorage.setItem(KEY, chosen);
  } catch {
    /* until the page is closed */
  }
  show();
}

system.addEventListener("change", show);
show();
