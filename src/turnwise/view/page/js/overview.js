// The overview shows the whole stream as one strip: the sampled tokens, and how strong their
// colours are.

import { cssColor, h, perFrame } from "./dom.js";
import { LEVELS } from "./scale.js";

const HEIGHT = 30;

export class Overview {
  constructor(choose) {
    this.canvas = h("canvas", {
      class: "overview",
      height: HEIGHT,
      title: "The whole stream; click to go there",
    });
    this.draw = perFrame(() => this.drawNow());
    this.resized = new ResizeObserver(this.draw);
    this.resized.observe(this.canvas);
    const pick = (event) => {
      if (!this.data || (event.type === "pointermove" && !event.buttons)) return;
      const box = this.canvas.getBoundingClientRect();
      const at = Math.floor(((event.clientX - box.left) / box.width) * this.data.count);
      choose(Math.min(this.data.count - 1, Math.max(0, at)));
    };
    this.canvas.addEventListener("pointerdown", pick);
    this.canvas.addEventListener("pointermove", pick);
  }

  set(data, scale, values) {
    Object.assign(this, { data, scale, values });
    this.draw();
  }

  select(index) {
    this.selected = index;
    this.draw();
  }

  drawNow() {
    const { canvas, data, scale, values } = this;
    const width = canvas.clientWidth;
    if (!data || !width) return;
    const ratio = devicePixelRatio || 1;
    canvas.width = width * ratio;
    canvas.height = HEIGHT * ratio;
    const pen = canvas.getContext("2d");
    pen.scale(ratio, ratio);
    const colors = {
      plus: cssColor("--plus"),
      minus: cssColor("--minus"),
      accent: cssColor("--accent"),
      prompt: cssColor("--line"),
    };
    const perPixel = data.count / width;
    for (let x = 0; x < width; x += 1) {
      const from = Math.floor(x * perPixel);
      const to = Math.max(from + 1, Math.floor((x + 1) * perPixel));
      let sampled = false;
      let level = 0;
      for (let at = from; at < to && at < data.count; at += 1) {
        if (!data.mask[at]) continue;
        sampled = true;
        const own = values ? scale.level(values[at]) : 0;
        if (Math.abs(own) > Math.abs(level)) level = own;
      }
      pen.fillStyle = sampled ? colors.accent : colors.prompt;
      pen.fillRect(x, HEIGHT - 5, 1, sampled ? 5 : 2);
      if (!sampled || !level) continue;
      pen.fillStyle = scale.choice.oneSided
        ? colors.accent
        : level > 0
          ? colors.plus
          : colors.minus;
      const tall = (Math.abs(level) / LEVELS) * (HEIGHT - 9);
      pen.fillRect(x, HEIGHT - 7 - tall, 1, tall);
    }
    if (this.selected !== null && this.selected !== undefined) {
      const x = ((this.selected + 0.5) / data.count) * width;
      pen.fillStyle = cssColor("--text");
      pen.fillRect(x - 0.75, 0, 1.5, HEIGHT);
    }
  }

  destroy() {
    this.draw.cancel();
    this.resized.disconnect();
  }
}
