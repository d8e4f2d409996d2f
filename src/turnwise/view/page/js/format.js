// This module formats numbers for people.

export function num(value, digits = 3) {
  if (value === null || value === undefined) return "–";
  if (typeof value !== "number") return String(value);
  if (value === 0) return "0";
  const size = Math.abs(value);
  if (Number.isInteger(value) && size < 1e7) return value.toLocaleString("en").replace("-", "−");
  if (size >= 1e6 || size < 1e-4)
    return value.toExponential(2).replace("e+", "e").replaceAll("-", "−");
  if (size >= 1000) return Math.round(value).toLocaleString("en").replace("-", "−");
  return Number(value.toPrecision(digits)).toString().replace("-", "−");
}

export function signed(value, digits = 3) {
  if (value === null || value === undefined) return "–";
  return value > 0 ? `+${num(value, digits)}` : num(value, digits);
}

export function percent(value, digits = 0) {
  return value === null || value === undefined ? "–" : `${(100 * value).toFixed(digits)}%`;
}

export function seconds(value) {
  if (value === null || value === undefined) return "–";
  if (value < 1e-3) return `${(value * 1e6).toFixed(0)} µs`;
  if (value < 1) return `${(value * 1e3).toFixed(value < 0.01 ? 1 : 0)} ms`;
  if (value < 60) return `${value.toFixed(value < 10 ? 2 : 1)} s`;
  const minutes = Math.floor(value / 60);
  if (minutes < 60) return `${minutes}:${String(Math.floor(value % 60)).padStart(2, "0")} min`;
  return `${Math.floor(minutes / 60)} h ${String(minutes % 60).padStart(2, "0")} min`;
}

export function ago(when) {
  const date = typeof when === "number" ? new Date(when * 1000) : new Date(when);
  const passed = (Date.now() - date.getTime()) / 1000;
  if (!Number.isFinite(passed)) return "";
  if (passed < 10) return "just now";
  if (passed < 90) return `${Math.round(passed)} s ago`;
  if (passed < 5400) return `${Math.round(passed / 60)} min ago`;
  if (passed < 129600) return `${Math.round(passed / 3600)} h ago`;
  return date.toISOString().slice(0, 10);
}

export function plural(number, one, many = `${one}s`) {
  return `${num(number)} ${number === 1 ? one : many}`;
}

export function words(name) {
  return name.replaceAll("_", " ").replaceAll("/", " / ");
}

export function seedText(seed) {
  const text = String(seed);
  return text.length > 9 ? `${text.slice(0, 4)}…${text.slice(-4)}` : text;
}
