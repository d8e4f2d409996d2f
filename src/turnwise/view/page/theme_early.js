// This runs before the first paint: otherwise a dark page would flash white.
{
  let chosen = null;
  try {
    chosen = localStorage.getItem("turnwise.theme");
  } catch {
    /* the system's preference applies */
  }
  if (chosen !== "dark" && chosen !== "light") {
    chosen = matchMedia("(prefers-color-scheme: dark)").matches ? "dark" : "light";
  }
  document.documentElement.dataset.theme = chosen;
}
