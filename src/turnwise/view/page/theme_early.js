// This runs before the first paint: otherwise a dark page would flash white.
{
  let chosen = null;
  try {
    chosen = localStorage.getItem("turnwise.theme");
  } catch {
    /* the system's preference applies */
  }
  const { dataset } = document.documentElement;
  if (chosen === "dark" || chosen === "light") dataset.chosen = "yes";
  else chosen = matchMedia("(prefers-color-scheme: dark)").matches ? "dark" : "light";
  dataset.theme = chosen;
}
