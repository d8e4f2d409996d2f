// Draws the reward of one task over training: a dot for each episode, a line through the steps'
// means.

import { h, svg } from "./dom.js";
import { num } from "./format.js";

const WIDTH = 600;
const HEIGHT = 84;
const PAD = 6;

export function taskCurve(episodes, chosen, choose) {
  const known = episodes.filter((one) => typeof one.reward === "number");
  const steps = [...new Set(known.map((one) => one.step))];
  if (steps.length < 2) return null;
  const rewards = known.map((one) => one.reward);
  const [low, high] = [Math.min(...rewards), Math.max(...rewards)];
  const x = (step) => PAD + ((WIDTH - 2 * PAD) * (step - steps[0])) / (steps.at(-1) - steps[0]);
  const y = (reward) =>
    high === low ? HEIGHT / 2 : HEIGHT - PAD - ((HEIGHT - 2 * PAD) * (reward - low)) / (high - low);
  const means = steps.map((step) => {
    const own = known.filter((one) => one.step === step);
    return [step, own.reduce((sum, one) => sum + one.reward, 0) / own.length];
  });
  const path = means.map(([step, mean], i) => `${i ? "L" : "M"}${x(step)} ${y(mean)}`).join("");
  const dots = known.map((one) => {
    const dot = svg(
      "circle",
      {
        cx: x(one.step),
        cy: y(one.reward),
        r: chosen.has(one.id) ? 5 : 3.5,
        class: chosen.has(one.id) ? "is-on" : "",
        "data-id": one.id,
      },
      svg("title", null, `step ${one.step}: reward ${num(one.reward)}`),
    );
    dot.addEventListener("click", () => choose(one.id));
    return dot;
  });
  const first = means[0][1];
  const last = means.at(-1)[1];
  return h(
    "figure",
    { class: "task-curve" },
    h(
      "div",
      { class: "task-axis num", "aria-hidden": "true" },
      h("span", null, num(high)),
      high === low ? null : h("span", null, num(low)),
    ),
    svg(
      "svg",
      {
        viewBox: `0 0 ${WIDTH} ${HEIGHT}`,
        role: "img",
        "aria-label": `Reward of this task, step ${steps[0]}: ${num(first)}, step ${steps.at(-1)}: ${num(last)}`,
      },
      svg("path", { d: path }),
      dots,
    ),
    h(
      "figcaption",
      { class: "num" },
      h("span", null, `step ${num(steps[0])}`),
      h("span", null, "reward of this task, mean of each step"),
      h("span", null, `step ${num(steps.at(-1))}`),
    ),
  );
}
