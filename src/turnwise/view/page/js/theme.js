// The theme is dark or light as the system prefers, until the user chooses.

const KEY = "turnwise.theme";
const system = matchMedia("(prefers-color-scheme: dark)");
let chosen = null;
try {
  chosen = localStorage.getItem(KEY);
} catch {
  /* the system's preference applies */
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
    /* the choice lasts until the page is closed */
  }
  show();
}

system.addEventListener("change", show);
show();
