// Before the first paint, or a dark page would flash white.
{
  let chosen = null;
  try {
    chosen = localStorage.getItem("turnwise.theme");
  } catch {
    /* follows the system */
  }
  if (chosen !== "dark" && chosen !== "light") {
    chosen = matchMedia("(prefers-color-scheme: dark)").matches ? "dark" : "light";
  }
  document.documentElement.dataset.theme = chosen;
}
